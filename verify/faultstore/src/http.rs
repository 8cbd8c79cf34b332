//! The part of HTTP/1.1 that a proxy between a client and an object store needs: heads are parsed, bodies are
//! forwarded unchanged, and nothing is rewritten, because requests are signed.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;

/// Bytes of one slice to forward.
pub(crate) const SLICE: usize = 16 * 1024;
/// Maximum bytes of a message head; no message to an object store is longer.
const HEAD_MAX: usize = 64 * 1024;

/// The unchanged head of a request or an answer.
pub(crate) struct Head {
    pub bytes: Vec<u8>,
    /// The first line.
    pub line: String,
    length: Option<u64>,
    chunked: bool,
    /// Whether the sender closes the connection after the message.
    pub closes: bool,
    /// Whether the sender waits for `100 Continue` before it sends the body.
    pub expects: bool,
}

/// How the end of a body is determined.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

impl Head {
    /// Reads a head; `None` at the end of the connection.
    pub fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Head>> {
        let mut head = Head {
            bytes: Vec::new(),
            line: String::new(),
            length: None,
            chunked: false,
            closes: false,
            expects: false,
        };
        loop {
            let at = head.bytes.len();
            let room = (HEAD_MAX - at) as u64;
            from.by_ref().take(room).read_until(b'\n', &mut head.bytes)?;
            let line = String::from_utf8_lossy(&head.bytes[at..]);
            let line = match line.strip_suffix('\n') {
                Some(line) => line.trim_end_matches('\r').to_owned(),
                None if at == 0 && line.is_empty() => return Ok(None),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            if at == 0 {
                head.closes = line.contains("HTTP/1.0");
                head.line = line;
            } else if line.is_empty() {
                return Ok(Some(head));
            } else {
                head.field(&line);
            }
        }
    }

    fn field(&mut self, line: &str) {
        let Some((name, value)) = line.split_once(':') else { return };
        let value = value.trim().to_ascii_lowercase();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => self.length = value.parse().ok(),
            "transfer-encoding" => self.chunked = value.contains("chunked"),
            "connection" => self.closes = value.contains("close"),
            "expect" => self.expects = value.contains("100-continue"),
            _ => {}
        }
    }

    /// The body of a request.
    pub fn of_request(&self) -> Body {
        match (self.chunked, self.length) {
            (true, _) => Body::Chunked,
            (false, length) => Body::Length(length.unwrap_or(0)),
        }
    }

    /// The status code of an answer.
    pub fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// The body of an answer. An answer to HEAD, and some other answers, have no body, whatever the head
    /// says.
    pub fn of_answer(&self, to_head: bool) -> Body {
        match (self.chunked, self.length) {
            _ if to_head || matches!(self.status(), 100..200 | 204 | 304) => Body::Length(0),
            (true, _) => Body::Chunked,
            (false, Some(length)) => Body::Length(length),
            (false, None) => Body::UntilClose,
        }
    }
}

impl Body {
    /// Reads the body as it arrives and forwards it in slices; answers its number of bytes.
    pub fn pass(
        self,
        from: &mut BufReader<TcpStream>,
        mut on: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut all = 0;
        match self {
            Body::Length(length) => all += pass(from, length, &mut on)?,
            Body::UntilClose => {
                let mut slice = vec![0; SLICE];
                loop {
                    let n = from.read(&mut slice)?;
                    if n == 0 {
                        break;
                    }
                    on(&mut slice[..n])?;
                    all += n as u64;
                }
            }
            Body::Chunked => loop {
                let mut line = Vec::new();
                from.by_ref().take(HEAD_MAX as u64).read_until(b'\n', &mut line)?;
                let text = String::from_utf8_lossy(&line);
                let digits = text.split([';', '\r', '\n']).next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16).map_err(io::Error::other)?;
                let length = line.len() as u64;
                on(&mut line)?;
                // Includes the line end after the chunk; the last chunk is empty and has no trailers.
                all += length + pass(from, size + 2, &mut on)?;
                if size == 0 {
                    break;
                }
            },
        }
        Ok(all)
    }
}

fn pass(
    from: &mut BufReader<TcpStream>,
    length: u64,
    on: &mut impl FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut slice = vec![0; SLICE];
    let mut left = length;
    while left > 0 {
        let most = left.min(SLICE as u64) as usize;
        let n = from.read(&mut slice[..most])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        on(&mut slice[..n])?;
        left -= n as u64;
    }
    Ok(length)
}
