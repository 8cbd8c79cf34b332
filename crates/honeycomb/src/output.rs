//! Printing of results: text for people, JSON for programs, bytes unchanged.

use crate::failure::{CommandResult, Exit};
use clap::Args;
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// The output options of a command.
#[derive(Args, Clone, Copy)]
pub struct Output {
    /// Print one JSON object instead of text; errors are JSON objects on standard error. Names contain
    /// their unit (_ms, _us, _bytes, bytes_)
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// Prints a result in one of its two forms.
    pub fn print(self, value: &Value, text: impl FnOnce() -> String) {
        if self.json {
            say!("{value}");
        } else {
            say!("{}", text());
        }
    }
}

/// Prints a line. If the reader has closed the pipe, the program ends quietly. Any other write error ends it
/// with an error code, because a script must not assume that the results were written.
pub fn print_line(text: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        end_of_output(&e);
    }
}

/// Prints bytes and nothing else.
pub fn print_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(bytes).and_then(|()| out.flush()) {
        end_of_output(&e);
    }
}

/// Prints a value, followed by a line end on a terminal.
pub fn print_value(bytes: &[u8]) -> CommandResult {
    print_bytes(bytes);
    if std::io::stdout().is_terminal() {
        print_bytes(b"\n");
    }
    Ok(())
}

fn end_of_output(e: &std::io::Error) -> ! {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(Exit::Done as i32);
    }
    eprintln!("honeycomb: cannot write the results: {e}");
    std::process::exit(Exit::Failed as i32);
}

/// Puts bytes into a JSON object: under `name` when they are UTF-8, else under `name_hex`.
pub fn put_bytes(object: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object[name] = text.into(),
        Err(_) => object[format!("{name}_hex")] = hex(bytes).into(),
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes as one line of text, reversibly: unprintable bytes are written as `\t`, `\n`, `\\` or `\xNN`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                c if c.is_control() => {
                    let mut room = [0; 4];
                    for b in c.encode_utf8(&mut room).bytes() {
                        text.push_str(&format!("\\x{b:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for b in chunk.invalid() {
            text.push_str(&format!("\\x{b:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_kind_are_one_line() {
        assert_eq!(escaped("honig \u{e4}".as_bytes()), "honig \u{e4}");
        assert_eq!(escaped(b"a\tb\nc\\d\x00\xff"), "a\\tb\\nc\\\\d\\x00\\xff");
        let mut object = serde_json::json!({});
        put_bytes(&mut object, "value", b"blue");
        put_bytes(&mut object, "key", b"\xff\x00");
        assert_eq!(object, serde_json::json!({ "value": "blue", "key_hex": "ff00" }));
    }
}
