//! Checks of the network: ports, and how long the loopback takes.

use super::Finding;
use crate::config::Settings;
use crate::serve::LISTEN_DEFAULT;
use honeycomb_env::Clock;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Round trips that are measured.
const ROUNDS: usize = 200;
/// How long one may take before the probe gives up.
const PATIENCE: Duration = Duration::from_millis(500);
/// What a round trip over the loopback takes on a machine that is not busy, generously.
const WAKE_UP_US: f64 = 200.0;
/// Most file descriptors of other processes that are looked at.
const LINKS_MAX: usize = 100_000;

/// Whether the loopback can be listened on, and whether the configured port is free.
pub fn ports(settings: &Settings) -> Vec<Finding> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let loopback = match TcpListener::bind(any) {
        Ok(_) => Finding::ok("loopback", "ports of 127.0.0.1 can be listened on"),
        Err(e) => Finding::fail(
            "loopback",
            format!("no port of 127.0.0.1 can be listened on: {e}"),
            "bring the interface up (ip link set lo up), and look at the sandbox's rules",
        ),
    };
    let listen = settings.listen().unwrap_or(LISTEN_DEFAULT);
    let port = match TcpListener::bind(listen) {
        Ok(_) => Finding::ok("port", format!("{listen} is free")),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => match holder(listen) {
            Some((pid, name)) if name == "honeycomb" => {
                Finding::ok("port", format!("{listen} is taken by honeycomb (process {pid})"))
            }
            Some((pid, name)) => {
                Finding::warn("port", format!("{listen} is taken by {name} (process {pid})"), OTHER)
            }
            None => Finding::warn("port", format!("{listen} is taken by another user"), OTHER),
        },
        Err(e) => Finding::fail("port", format!("{listen} cannot be listened on: {e}"), OTHER),
    };
    vec![loopback, port]
}

const OTHER: &str = "`honeycomb start --listen 127.0.0.1:0` takes any free port; clients find it by \
                     the cluster file";

/// The process that listens on an address, as far as this user may see it.
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

/// How long a byte takes to another thread and back when both sleep until it comes.
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
                    "look for load, power saving or a throttled virtual machine",
                ),
                false => Finding::ok("wake-up", text),
            }
        }
        Err(e) => Finding::fail(
            "wake-up",
            format!("no round trip over the loopback: {e}"),
            "look at the loopback interface and the sandbox's rules",
        ),
    }
}

/// Sorted, in microseconds.
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
        // Ends with the other side, or with its patience.
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
