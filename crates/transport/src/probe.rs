//! Checks whether an address has a listener.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Whether the machine of `address` (host:port) replies that the port has no listener. The absence
/// of a reply does not count: a link may be down, or a name temporarily unknown. Blocks for up to
/// `patience` for each address of the name, and for the resolution of the name.
pub fn nobody_listens(address: &str, patience: Duration) -> bool {
    let Ok(candidates) = address.to_socket_addrs() else { return false };
    let mut refused = candidates.map(|candidate| {
        let attempt = TcpStream::connect_timeout(&candidate, patience);
        attempt.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    });
    refused.next().is_some_and(|first| first && refused.all(|refused| refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn address_where_nobody_listens_is_told_from_one_that_does_not_answer() {
        let patience = Duration::from_millis(250);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(!nobody_listens(&address, patience));
        drop(listener);
        assert!(nobody_listens(&address, patience));
        assert!(!nobody_listens("no name", patience));
    }
}
