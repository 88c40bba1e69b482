//! Rigs in network namespaces and the tests on real programs
