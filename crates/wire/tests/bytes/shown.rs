//! Compares the `Debug` form (`{:?}`) of a value with a vector.
//!
//! In this way each field of each message is compared by name without a line of code for it.

use crate::common::unhex;
use serde_json::Value;

/// A value as `Debug` writes it.
#[derive(Debug)]
pub enum Shown {
    /// A number, `true`, `None`, the name of a struct without fields.
    Word(String),
    /// A quoted text.
    Text(String),
    /// `[a, b]`
    List(Vec<Shown>),
    /// `Name { field: value }`
    Fields(Vec<(String, Shown)>),
}

/// Reads the output of `Debug`.
pub fn parse(debug: &str) -> Shown {
    let mut reader = Parser { rest: debug };
    let value = reader.value();
    assert!(reader.rest.is_empty(), "left over: {:?}", reader.rest);
    value
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest.strip_prefix(token);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn word(&mut self) -> String {
        let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        assert!(end > 0, "a word: {:?}", self.rest);
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn value(&mut self) -> Shown {
        if self.eat("\"") {
            return Shown::Text(self.quoted());
        }
        if self.eat("[") {
            let mut items = Vec::new();
            while !self.eat("]") {
                items.push(self.value());
                self.eat(", ");
            }
            return Shown::List(items);
        }
        let word = self.word();
        if !self.eat(" { ") {
            return Shown::Word(word);
        }
        let mut fields = Vec::new();
        while !self.eat(" }") {
            let name = self.word();
            assert!(self.eat(": "), "a value: {:?}", self.rest);
            fields.push((name, self.value()));
            self.eat(", ");
        }
        Shown::Fields(fields)
    }

    fn quoted(&mut self) -> String {
        let mut out = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next().expect("the quotes are closed") {
                '"' => break,
                '\\' => match chars.next().expect("an escape has a character") {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    '0' => out.push('\0'),
                    'u' => {
                        let code: String = chars.by_ref().take_while(|c| *c != '}').collect();
                        let code = u32::from_str_radix(&code[1..], 16).expect("\\u{hex}");
                        out.push(char::from_u32(code).expect("a character"));
                    }
                    other => out.push(other),
                },
                other => out.push(other),
            }
        }
        self.rest = chars.as_str();
        out
    }
}

/// Whether a vector's fields and the value are the same.
pub fn agrees(vector: &Value, shown: &Shown) -> bool {
    match (vector, shown) {
        (Value::Object(fields), Shown::Fields(found)) => {
            fields.len() == found.len()
                && found
                    .iter()
                    .all(|(name, value)| fields.get(name).is_some_and(|field| agrees(field, value)))
        }
        (Value::Object(fields), Shown::Word(_)) => fields.is_empty(),
        (Value::Array(items), Shown::List(found)) => {
            items.len() == found.len() && items.iter().zip(found).all(|(i, f)| agrees(i, f))
        }
        (Value::String(hex), Shown::List(found)) => {
            let found = found.iter().map(|f| match f {
                Shown::Word(digits) => digits.parse().ok(),
                _ => None,
            });
            found.collect::<Option<Vec<u8>>>().is_some_and(|found| unhex(hex) == Some(found))
        }
        (Value::String(text), Shown::Text(found)) => text == found,
        (Value::String(digits), Shown::Word(found)) => digits == found,
        (Value::Null, Shown::Word(found)) => found == "None",
        (Value::Bool(_) | Value::Number(_), Shown::Word(found)) => &vector.to_string() == found,
        _ => false,
    }
}
