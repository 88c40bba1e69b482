//! From the environment to a [`Config`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::check;
use crate::config::Config;
use crate::dialect::Translation;
use crate::key::Key;
use crate::keys::KEYS;
use crate::problem::{Fault, LoadError, Notice, Problem, SyntaxError};
use crate::value::{self, Wrong};

/// Names the file, instead of the places below.
const PATH_VARIABLE: &str = "LSTACK_CONF_PATH";
/// Looked for in this order.
const PLACES: [&str; 2] = ["/etc/lstack.conf", "/etc/gazelle/lstack.conf"];
/// Overrides `stats_file`.
const STATS_VARIABLE: &str = "LSTACK_STATS_FILE";
/// A configuration of a few hundred lines has some 10 KiB; what is larger is another file.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Looks up a variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process.
#[must_use]
pub fn process_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Settings without effect, by line.
    pub notices: Vec<Notice>,
    /// The file.
    pub path: PathBuf,
}

impl Loaded {
    /// All notices as one message of one line; `None` when there are none.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        if self.notices.is_empty() {
            return None;
        }
        let mut message = format!("{}: settings of no effect here:", self.path.display());
        for (index, notice) in self.notices.iter().enumerate() {
            let separator = if index == 0 { " " } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(message, "{separator}{notice}");
        }
        Some(message)
    }
}

/// Finds and reads the configuration of this process.
///
/// # Errors
///
/// See [`LoadError`]; its text is for the user.
pub fn load() -> Result<Loaded, LoadError> {
    load_with(&process_environment)
}

/// As [`load`], in another environment.
///
/// # Errors
///
/// See [`LoadError`].
pub fn load_with(environment: Environment<'_>) -> Result<Loaded, LoadError> {
    let mut loaded = match environment(PATH_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => load_file(Path::new(&path))?,
        None => load_first(&PLACES.map(PathBuf::from))?,
    };
    if let Some(path) = environment(STATS_VARIABLE).filter(|path| !path.is_empty()) {
        loaded.config.stats_file = Some(path.into());
    }
    Ok(loaded)
}

/// Reads the first of `places` that exists. One that exists and is bad ends the search: its owner
/// wants to know.
fn load_first(places: &[PathBuf]) -> Result<Loaded, LoadError> {
    for path in places {
        match load_file(path) {
            Err(LoadError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    Err(LoadError::NotFound { searched: places.to_vec() })
}

/// Reads this file.
///
/// # Errors
///
/// See [`LoadError`].
pub fn load_file(path: &Path) -> Result<Loaded, LoadError> {
    let text =
        read(path).map_err(|source| LoadError::Unreadable { path: path.to_owned(), source })?;
    parse(&text, path)
}

fn read(path: &Path) -> io::Result<String> {
    // Before opening, since opening a FIFO would wait for a writer.
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 64 KiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8 text"))
    })
}

/// What the file says about a key, for the checks between keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    /// Line, from 1.
    pub(crate) line: usize,
    /// The value, for an integer.
    pub(crate) number: Option<i64>,
}

/// What is gathered while a file is read.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) config: Config,
    pub(crate) given: BTreeMap<&'static str, Given>,
    /// Keys that had a problem of their own: checks between keys leave them out.
    pub(crate) bad: Vec<&'static str>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) problems: Vec<Problem>,
}

/// Reads a text; `path` is only for messages.
///
/// # Errors
///
/// [`LoadError::Syntax`] or [`LoadError::Invalid`].
pub fn parse(text: &str, path: &Path) -> Result<Loaded, LoadError> {
    let translation = Translation::new(text);
    let (document, errors) = DeTable::parse_recoverable(translation.toml());
    let mut draft = Draft {
        config: Config::defaults(),
        given: BTreeMap::new(),
        bad: Vec::new(),
        notices: Vec::new(),
        problems: Vec::new(),
    };
    for (name, value) in document.get_ref() {
        draft.apply(name.get_ref(), translation.line_of(name.span().start), value.get_ref());
    }
    let on_init_failure = draft.config.on_init_failure;
    if !errors.is_empty() {
        // What was read between the errors is not worth a check: much of it may be missing.
        return Err(LoadError::Syntax {
            path: path.to_owned(),
            errors: syntax_errors(&errors, &translation),
            on_init_failure,
        });
    }
    check::across_keys(&mut draft);
    let Draft { config, mut notices, mut problems, .. } = draft;
    if problems.is_empty() {
        notices.sort_by_key(|notice| notice.line);
        Ok(Loaded { config, notices, path: path.to_owned() })
    } else {
        // Missing keys, which have no line, come last.
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        Err(LoadError::Invalid { path: path.to_owned(), problems, on_init_failure })
    }
}

/// The first error of each line: what follows on the same line is mostly its consequence.
fn syntax_errors(errors: &[toml::de::Error], translation: &Translation) -> Vec<SyntaxError> {
    let mut found: Vec<SyntaxError> = errors
        .iter()
        .map(|error| SyntaxError {
            line: translation.line_of(error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', ", "),
        })
        .collect();
    found.sort_by_key(|error| error.line);
    found.dedup_by_key(|error| error.line);
    found
}

impl Draft {
    fn apply(&mut self, name: &str, line: usize, found: &DeValue<'_>) {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let fault = Fault::Unknown { nearest: nearest(name) };
            self.problems.push(Problem { line: Some(line), key: value::shorten(name), fault });
            return;
        };
        let number = found
            .as_integer()
            .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
        self.given.insert(key.name, Given { line, number });
        match key.rule.apply(found, &mut self.config) {
            Ok(None) => {}
            Ok(Some(text)) => self.notice(key.name, text.to_owned()),
            Err(Wrong(found)) => self.reject(key, found),
        }
    }

    fn reject(&mut self, key: &'static Key, found: String) {
        self.bad.push(key.name);
        self.problem(key.name, Fault::Value { found, allowed: key.rule.allowed() });
    }

    /// Adds a problem with a known key.
    pub(crate) fn problem(&mut self, key: &'static str, fault: Fault) {
        let line = self.given.get(key).map(|given| given.line);
        self.problems.push(Problem { line, key: key.to_owned(), fault });
    }

    /// Adds a notice about a key that is in the file.
    pub(crate) fn notice(&mut self, key: &'static str, text: String) {
        let line = self.given.get(key).map_or(0, |given| given.line);
        self.notices.push(Notice { line, key, text });
    }
}

/// The known key spelt most like `name`, if it is near enough to be what was meant: a third of
/// the letters may differ.
fn nearest(name: &str) -> Option<&'static str> {
    // A key may be as long as the file; the distance takes time in proportion to the product.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_ascii_lowercase().replace('-', "_");
    KEYS.iter()
        .filter(|key| !matches!(key.rule, crate::key::Rule::Retired(_)))
        .map(|key| (strsim::osa_distance(&name, key.name), key.name))
        .min()
        .filter(|(distance, known)| *distance * 3 <= known.len().max(name.len()))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests;
