//! Checks of the network: ports, and the round-trip time of the loopback.

use super::Finding;
use crate::config::Settings;
use crate::serve::LISTEN_DEFAULT;
use honeycomb_env::Clock;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Number of measured round trips.
const ROUNDS: usize = 200;
/// Timeout of one round trip.
const PATIENCE: Duration = Duration::from_millis(500);
/// A generous bound for a loopback round trip on an idle machine, in microseconds.
const WAKE_UP_US: f64 = 200.0;
/// Maximum number of file descriptors of other processes to inspect.
const LINKS_MAX: usize = 100_000;

/// Checks that a process can listen on the loopback, and that the configured port is free.
pub fn ports(settings: &Settings) -> Vec<Finding> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let loopback = match TcpListener::bind(any) {
        Ok(_) => Finding::ok("loopback", "a process can listen on ports of 127.0.0.1"),
        Err(e) => Finding::fail(
            "loopback",
            format!("cannot listen on any port of 127.0.0.1: {e}"),
            "bring the interface up (ip link set lo up), and check the rules of the sandbox",
        ),
    };
    let listen = settings.listen().unwrap_or(LISTEN_DEFAULT);
    let port = match TcpListener::bind(listen) {
        Ok(_) => Finding::ok("port", format!("{listen} is free")),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => match holder(listen) {
            Some((pid, name)) if name == "honeycomb" => {
                Finding::ok("port", format!("{listen} is used by honeycomb (process {pid})"))
            }
            Some((pid, name)) => {
                Finding::warn("port", format!("{listen} is used by {name} (process {pid})"), OTHER)
            }
            None => {
                let text = format!("{listen} is used by a process of another user");
                Finding::warn("port", text, OTHER)
            }
        },
        Err(e) => Finding::fail("port", format!("cannot listen on {listen}: {e}"), OTHER),
    };
    vec![loopback, port]
}

const OTHER: &str = "`honeycomb start --listen 127.0.0.1:0` takes any free port; clients find it \
    by the cluster file";

/// The process that listens on an address, if this user may see it.
fn holder(address: SocketAddr) -> Option<(u32, String)> {
    let inode = inode(address)?;
    let wanted = format!("socket:[{inode}]");
    let mut looked_at = 0;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(links) = fs::read_dir(process.path().join("fd")) else { continue };
        for link in links.flatten() {
            looked_at += 1;
            if looked_at > LINKS_MAX {
                return None;
            }
            if fs::read_link(link.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some((pid, name.trim().to_owned()));
            }
        }
    }
    None
}

/// The inode of the socket that listens on a port (state 0A).
fn inode(address: SocketAddr) -> Option<String> {
    let table = if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let text = fs::read_to_string(table).ok()?;
    let port = format!(":{:04X}", address.port());
    text.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listening = fields.get(1)?.ends_with(&port) && *fields.get(3)? == "0A";
        listening.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    })
}

/// Measures the round trip of a byte to another thread, when both threads sleep until it arrives.
pub fn wake_up(clock: Clock) -> Finding {
    match round_trips(clock) {
        Ok(times) => {
            let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
            let text = format!(
                "a round trip over the loopback takes {median:.0} us (median of {ROUNDS}, at most \
                 {worst:.0} us)"
            );
            match median > WAKE_UP_US {
                true => Finding::warn(
                    "wake-up",
                    format!("{text}, which is slow"),
                    "check for load, power saving or a throttled virtual machine",
                ),
                false => Finding::ok("wake-up", text),
            }
        }
        Err(e) => Finding::fail(
            "wake-up",
            format!("a round trip over the loopback failed: {e}"),
            "check the loopback interface and the rules of the sandbox",
        ),
    }
}

/// Times of round trips in microseconds, sorted.
fn round_trips(clock: Clock) -> io::Result<Vec<f64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut near = TcpStream::connect_timeout(&address, PATIENCE)?;
    let (mut far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    let echo = std::thread::Builder::new().name("echo".into()).spawn(move || {
        let mut byte = [0];
        // Ends when the other side closes, or at the timeout.
        while let Ok(1) = far.read(&mut byte) {
            if far.write_all(&byte).is_err() {
                break;
            }
        }
    })?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = clock.now();
        near.write_all(&[1])?;
        near.read_exact(&mut [0])?;
        times.push(clock.now().since(began).as_secs_f64() * 1e6);
    }
    drop(near);
    let _ = echo.join();
    times.sort_by(f64::total_cmp);
    Ok(times)
}
