//! From libconfig's spelling to TOML's.
//!
//! Gazelle's files are written for libconfig. Its syntax and TOML overlap in `key = value` lines,
//! quoted strings, numbers, arrays in brackets and `#` comments. This pass rewrites the rest and
//! leaves everything else, right or wrong, to the TOML parser:
//!
//! | libconfig | becomes |
//! |---|---|
//! | comments `// ...` and `/* ... */` | nothing |
//! | `;` after a setting | the end of the line |
//! | `key : value` | `key = value` |
//! | `key =` with the value on a later line | one line |
//! | lists `( ... )` | arrays `[ ... ]` |
//! | adjacent strings `"a" "b"`, in arrays also on several lines | `"ab"` |
//! | `0X1F`, `10L`, `TRUE` | `0x1F`, `10`, `true` |
//!
//! It works on tokens and remembers where each came from, so that every error names the line of
//! the original file. It never fails.

/// TOML, and where its parts come from.
#[derive(Debug)]
pub(crate) struct Translation {
    toml: String,
    /// `(offset in toml, offset in source)` of each token, ascending.
    origins: Vec<(usize, usize)>,
    /// Where the lines of the source end, ascending.
    newlines: Vec<usize>,
}

impl Translation {
    /// Rewrites `source`.
    pub(crate) fn new(source: &str) -> Self {
        let mut translator = Translator {
            source,
            at: 0,
            depth: 0,
            place: Place::Key,
            result: Self {
                toml: String::with_capacity(source.len() + 1),
                origins: Vec::new(),
                newlines: source.match_indices('\n').map(|(at, _)| at).collect(),
            },
        };
        // A byte order mark, which editors of other systems leave, is no part of the text.
        translator.at = if source.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        while translator.step() {}
        translator.result
    }

    /// The TOML text.
    pub(crate) fn toml(&self) -> &str {
        &self.toml
    }

    /// The line of the source, from 1, from which `offset` in the TOML text comes.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        // The token that holds the offset, or the last one; inside a token the texts are the same.
        let token = self.origins.partition_point(|(start, _)| *start <= offset).checked_sub(1);
        let origin = token.map_or(0, |token| {
            let (start, origin) = self.origins[token];
            origin + (offset - start)
        });
        1 + self.newlines.partition_point(|newline| *newline < origin)
    }
}

/// What may come next outside brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A key or its separator.
    Key,
    /// The value.
    Value,
    /// The end of the setting.
    End,
}

struct Translator<'a> {
    source: &'a str,
    at: usize,
    /// Open brackets.
    depth: usize,
    place: Place,
    result: Translation,
}

impl<'a> Translator<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Handles one token; false at the end.
    fn step(&mut self) -> bool {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return false };
        let comment = comment_len(rest);
        if comment > 0 {
            self.comment(comment);
            return true;
        }
        match first {
            '\n' => self.newline(),
            '"' | '\'' => self.string(),
            '[' | '{' => self.open(1, if first == '[' { "[" } else { "{" }),
            '(' if self.in_value() => self.open(1, "["),
            ']' | '}' => self.close(if first == ']' { "]" } else { "}" }),
            ')' if self.depth > 0 => self.close("]"),
            '=' | ':' if self.depth == 0 && self.place == Place::Key => self.separator(),
            ';' if self.depth == 0 => {
                self.emit(1, "\n");
                self.place = Place::Key;
            }
            _ if is_word(first) => self.word(),
            _ => self.copy(first.len_utf8()),
        }
        true
    }

    fn in_value(&self) -> bool {
        self.depth > 0 || self.place == Place::Value
    }

    /// Moves over `len` bytes of the source, and writes `text` for them.
    fn emit(&mut self, len: usize, text: &str) {
        self.result.origins.push((self.result.toml.len(), self.at));
        self.result.toml.push_str(text);
        self.at += len;
    }

    fn copy(&mut self, len: usize) {
        let text = &self.rest()[..len];
        self.emit(len, text);
    }

    fn comment(&mut self, len: usize) {
        // A comment of several lines after a value ends the setting like a newline would.
        let ends = self.rest()[..len].contains('\n') && self.depth == 0 && self.place == Place::End;
        self.emit(len, if ends { "\n" } else { " " });
        if ends {
            self.place = Place::Key;
        }
    }

    fn newline(&mut self) {
        self.copy(1);
        if self.depth == 0 {
            self.place = Place::Key;
        }
    }

    fn separator(&mut self) {
        self.emit(1, "=");
        self.place = Place::Value;
        let gap = gap_len(self.rest(), true);
        // Only for values that cannot be mistaken for the next key.
        if self.rest()[..gap].contains('\n') && self.rest()[gap..].starts_with(['[', '(', '"']) {
            self.emit(gap, " ");
        }
    }

    fn open(&mut self, len: usize, text: &str) {
        // A bracket where a key belongs is a TOML table header; those stay on their line.
        if self.in_value() {
            self.depth += 1;
        }
        self.emit(len, text);
    }

    fn close(&mut self, text: &str) {
        self.emit(1, text);
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            self.place = Place::End;
        }
    }

    fn string(&mut self) {
        let rest = self.rest();
        let multiline = ["\"\"\"", "'''"].into_iter().find(|quotes| rest.starts_with(quotes));
        if let Some(quotes) = multiline {
            let len = rest[3..].find(quotes).map_or(rest.len(), |end| end + 6);
            self.copy(len);
        } else if let Some(len) = quoted_len(rest) {
            self.copy(len);
            if rest.starts_with('"') && self.in_value() {
                self.join_strings();
            }
        } else {
            // No closing quote: the TOML parser says so, at this line.
            self.copy(rest.find('\n').unwrap_or(rest.len()));
        }
        if self.depth == 0 && self.place == Place::Value {
            self.place = Place::End;
        }
    }

    /// Appends the strings that follow to the one just written.
    fn join_strings(&mut self) {
        loop {
            let gap = gap_len(self.rest(), self.depth > 0);
            let next = &self.rest()[gap..];
            let Some(len) = quoted_len(next).filter(|_| next.starts_with('"')) else { return };
            if next.starts_with("\"\"\"") {
                return;
            }
            self.result.toml.pop();
            self.emit(gap + 1, "");
            self.copy(len - 1);
        }
    }

    fn word(&mut self) {
        let rest = self.rest();
        let len = rest
            .char_indices()
            .find(|(at, c)| !is_word(*c) || comment_len(&rest[*at..]) > 0)
            .map_or(rest.len(), |(at, _)| at);
        let word = &rest[..len];
        if self.in_value() {
            self.emit(len, &plain(word));
        } else {
            self.copy(len);
        }
        if self.depth == 0 && self.place == Place::Value {
            self.place = Place::End;
        }
    }
}

fn is_word(c: char) -> bool {
    !c.is_whitespace() && !"\"'[]{}()=:;,".contains(c)
}

/// A number or boolean as TOML spells it.
fn plain(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    if lower == "true" || lower == "false" {
        return lower;
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
        return word.to_owned();
    }
    let number = word.trim_end_matches('L');
    match number.strip_prefix("0X") {
        Some(digits) => format!("0x{digits}"),
        None => number.to_owned(),
    }
}

/// Length of the comment at the start of `text`; 0 when there is none. The newline after a line
/// comment is not part of it.
fn comment_len(text: &str) -> usize {
    if text.starts_with('#') || text.starts_with("//") {
        text.find('\n').unwrap_or(text.len())
    } else if let Some(inside) = text.strip_prefix("/*") {
        // Unclosed: left alone, so that the TOML parser complains here.
        inside.find("*/").map_or(0, |end| end + 4)
    } else {
        0
    }
}

/// Length of the blanks and comments at the start of `text`.
fn gap_len(text: &str, newlines: bool) -> usize {
    let mut len = 0;
    loop {
        let rest = &text[len..];
        let comment = comment_len(rest);
        let comment = if newlines || !rest[..comment].contains('\n') { comment } else { 0 };
        match rest.chars().next() {
            _ if comment > 0 => len += comment,
            Some(c) if c.is_whitespace() && (newlines || c != '\n') => len += c.len_utf8(),
            _ => return len,
        }
    }
}

/// Length of the one-line string, with its quotes, at the start of `text`.
fn quoted_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next().filter(|(_, c)| *c == '"' || *c == '\'')?;
    while let Some((at, c)) = chars.next() {
        match c {
            '\n' => return None,
            // An escaped character is never the closing quote.
            '\\' if quote == '"' => {
                chars.next().filter(|(_, c)| *c != '\n')?;
            }
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Translation;
    use proptest::prelude::{prop_assert, proptest};
    use toml::de::DeTable;

    fn toml(source: &str) -> String {
        Translation::new(source).toml().to_owned()
    }

    #[test]
    fn toml_stays_as_it_is() {
        let source = "a = 1\nb = \"x // y\" \nc = ['#', 'it''s']\n[t]\nd = \"\"\"\n/* no */\n\"\"\"\n\
                      e = '''a\n# b'''\nf = 07:32:00\n";
        assert_eq!(toml(source), source);
    }

    #[test]
    fn comments_of_all_kinds_vanish() {
        assert_eq!(
            toml("a = 1 // x = 2\n# y\n/* z\n= */ b = 2/**/\n").trim_end(),
            "a = 1  \n \n  b = 2"
        );
        assert_eq!(toml("a = 1 /* \n */ b = 2"), "a = 1 \n b = 2");
    }

    #[test]
    fn separators_terminators_and_lists_become_toml() {
        assert_eq!(toml("a : 1; b = ( 1, ( 2 ) );"), "a = 1\n b = [ 1, [ 2 ] ]\n");
        assert_eq!(toml("a =\n  [ 1,\n 2 ]\n"), "a = [ 1,\n 2 ]\n");
        assert_eq!(toml("a =\nb = 1"), "a =\nb = 1");
    }

    #[test]
    fn adjacent_strings_are_joined() {
        assert_eq!(toml(r#"a = "x" "y\"" /* */ "z""#), r#"a = "xy\"z""#);
        assert_eq!(toml("a = [\"x\"\n\"y\", \"z\"]"), "a = [\"xy\", \"z\"]");
        assert_eq!(toml("a = \"x\"\n\"b\" = 1\n"), "a = \"x\"\n\"b\" = 1\n");
    }

    #[test]
    fn numbers_and_booleans_are_respelt() {
        assert_eq!(
            toml("a = 0X1fL\nb = 10L\nc = True\nd = [FALSE, -3L]"),
            "a = 0x1f\nb = 10\nc = true\nd = [false, -3]"
        );
        assert_eq!(toml("a = null\nTrue = 1"), "a = null\nTrue = 1");
    }

    #[test]
    fn lines_are_those_of_the_source() {
        let source = "/* 1\n 2 */ a\n=\n\"x\" ; b : ( \"p\"\n\"q\"\n); c = 1";
        let translation = Translation::new(source);
        let line = |text: &str| translation.line_of(translation.toml().find(text).unwrap());
        assert_eq!(line("a"), 2);
        assert_eq!(line("\"x\""), 4);
        assert_eq!(line("b"), 4);
        assert_eq!(line("q"), 5);
        assert_eq!(line("c"), 6);
        assert_eq!(translation.line_of(translation.toml().len() + 100), 6);
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        assert_eq!(toml("\u{feff}a = 1"), "a = 1");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(source in "\\PC*") {
            let translation = Translation::new(&source);
            let _ = DeTable::parse(translation.toml());
        }

        #[test]
        fn text_from_the_syntax_s_own_pieces_never_panics(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    "\"", "'", "\"\"\"", "[", "]", "(", ")", "{", "}", "=", ":", ";", ",", "\n", "\\",
                    "#", "//", "/*", "*/", "0x1", "1L", "True", "host_addr", "é", " ", "\r\n", "\u{feff}",
                ]),
                0..40,
            )
        ) {
            let source = pieces.concat();
            let translation = Translation::new(&source);
            let lines = source.bytes().filter(|byte| *byte == b'\n').count() + 1;
            for offset in 0..=translation.toml().len() {
                prop_assert!((1..=lines).contains(&translation.line_of(offset)));
            }
        }
    }
}
