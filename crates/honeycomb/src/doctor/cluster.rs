//! Checks of what Honeycomb has here: its settings, its cluster, its package, its folders.

use super::{Finding, Grade};
use crate::cluster::{ClusterFile, Place};
use crate::config::{Settings, default_file, unknown_variables};
use crate::failure::Failure;
use crate::{python as interpreter, size};
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_types::limits::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use honeycomb_wire::Status;
use honeycomb_wire::messages::ServerInfo;
use rustix::fs::Access;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Most seconds for the cluster's answer: a name that has to be looked up may take for ever.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for a server to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Most servers that are connected to, with a thread each.
const SERVERS_MAX: usize = 256;

/// Whether the settings are right, and what looks like one and is none.
pub fn configuration(settings: &Settings) -> Vec<Finding> {
    let text = match settings.file() {
        Some(path) => format!("{} was read", path.display()),
        None => "no configuration file: defaults and the environment".into(),
    };
    let mut found = vec![Finding::ok("configuration", text)];
    for (name, near) in unknown_variables() {
        let remedy = match near {
            Some(near) => format!("{near} was probably meant"),
            None => "unset it; `honeycomb config show` lists the settings".into(),
        };
        let text = format!("the variable {name} is no setting and does nothing");
        found.push(Finding::warn("environment", text, remedy));
    }
    found
}

/// The cluster as a client sees it.
struct Found {
    round_trip: Duration,
    servers: usize,
    lost: usize,
    suspected: usize,
    free: u64,
    blocks: u64,
    /// Servers that clients of this machine, or of others, cannot reach.
    unreached: Vec<Finding>,
}

/// Whether there is a cluster, takes the token, and has servers.
pub fn reach(clock: Clock, settings: &Settings) -> Vec<Finding> {
    let place = match Place::find(settings) {
        Ok(place) => place,
        Err(e) => return vec![not_found(settings, &e)],
    };
    let address = place.address.clone();
    let patience = settings.timeout().min(PATIENCE);
    let (answer, answers) = channel();
    let asked = std::thread::Builder::new().name("reach".into()).spawn(move || {
        let _ = answer.send(ask(clock, &place));
    });
    if let Err(e) = asked {
        let remedy = "raise the limit of processes (ulimit -u)";
        return vec![Finding::fail("cluster", format!("no thread can be started: {e}"), remedy)];
    }
    match answers.recv_timeout(patience) {
        Ok(Ok(found)) => judge(&address, found),
        Ok(Err(e)) => vec![Finding::fail("cluster", e.to_string(), remedy(e.status()))],
        Err(_) => {
            let text = format!("{address} did not answer within {} s", patience.as_secs_f64());
            vec![Finding::fail("cluster", text, remedy(Some(Status::Unavailable)))]
        }
    }
}

/// No cluster is fine as long as nobody named one.
fn not_found(settings: &Settings, e: &Failure) -> Finding {
    let unnamed = settings.address().is_none() && e.status() == Some(Status::Unavailable);
    match unnamed {
        true => Finding::warn(
            "cluster",
            "none is running here, and none is named",
            "`honeycomb start --background` starts one; Python starts an embedded one by itself",
        ),
        false => Finding::fail("cluster", e.to_string(), remedy(e.status())),
    }
}

fn ask(clock: Clock, place: &Place) -> Result<Found, Failure> {
    let client: Client = place.client()?;
    let began = clock.now();
    client.ping()?;
    let round_trip = clock.now().since(began);
    let status = client.status()?;
    Ok(Found {
        round_trip,
        servers: status.servers.len(),
        lost: status.servers.iter().filter(|s| !s.alive && s.silent_ms == 0).count(),
        suspected: status.servers.iter().filter(|s| s.silent_ms > 0).count(),
        free: status.free,
        blocks: status.blocks,
        unreached: connect_to_all(&place.address, &status.servers),
    })
}

/// Connects to every live server, all at the same time, and reports those that do not accept.
fn connect_to_all(controller: &str, servers: &[ServerInfo]) -> Vec<Finding> {
    let live = servers.iter().filter(|server| server.alive).take(SERVERS_MAX);
    std::thread::scope(|scope| {
        let tries: Vec<_> =
            live.map(|server| (server, scope.spawn(move || connect(&server.address)))).collect();
        let found = tries.into_iter().filter_map(|(server, tried)| {
            let reached = tried.join().expect("connecting does not panic");
            judge_server(controller, server, reached)
        });
        found.collect()
    })
}

fn connect(address: &str) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(_) => return Ok(()),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Whether an address is of the machine that uses it, whichever that is.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// A server on the loopback of its machine answers clients of that machine only, even when a connection
/// from here succeeds: that one may end at another process of this machine.
fn judge_server(controller: &str, server: &ServerInfo, reached: io::Result<()>) -> Option<Finding> {
    let named = format!("memory server {} at {}", server.server, server.address);
    let remedy = "start it again with --listen ADDRESS:PORT, or with --advertise and an address that \
                  clients reach";
    if is_loopback(&server.address) && !is_loopback(controller) {
        let text = format!(
            "{named} is registered with a loopback address, and the controller at {controller} is not: \
             clients on other machines cannot reach its blocks"
        );
        return Some(Finding::fail("server", text, remedy));
    }
    let e = reached.err()?;
    let text = format!("{named} cannot be reached from here: {e}");
    Some(Finding::fail(
        "server",
        text,
        format!("see that it runs and no firewall is between; else {remedy}"),
    ))
}

fn judge(address: &str, found: Found) -> Vec<Finding> {
    let reached = format!(
        "{address} answers in {} us, takes the token, and speaks protocol {PROTOCOL_MAJOR} as this \
         program does ({PROTOCOL_MAJOR}.{PROTOCOL_MINOR})",
        found.round_trip.as_micros()
    );
    let text =
        format!("{} memory servers, {} of {} blocks free", found.servers, found.free, found.blocks);
    let servers = match &found {
        Found { blocks: 0, .. } => Finding::fail(
            "servers",
            format!("{text}: nothing can be created"),
            "start one: honeycomb server --controller ... --token ...",
        ),
        Found { lost: 1.., .. } => {
            let remedy = "see why they ended, and start them again: what they held is lost";
            Finding::warn("servers", format!("{text}, {} lost", found.lost), remedy)
        }
        Found { suspected: 1.., .. } => {
            let remedy = "see whether they run and can be reached: what they hold is lost when they stay \
                          silent for server_loss_ms";
            Finding::warn("servers", format!("{text}, {} suspected", found.suspected), remedy)
        }
        Found { free, blocks, .. } if *free < *blocks / 20 => {
            let remedy = "remove what is not needed (`honeycomb du`), or add a server";
            Finding::warn("servers", format!("{text}: almost full"), remedy)
        }
        _ => Finding::ok("servers", text),
    };
    let mut all = vec![Finding::ok("cluster", reached), servers];
    all.extend(found.unreached);
    all
}

fn remedy(status: Option<Status>) -> &'static str {
    match status {
        Some(Status::Unauthenticated) => {
            "give the token of the running controller: a new controller has a new one"
        }
        Some(Status::PermissionDenied) => "mend what the message names, or give another token",
        Some(Status::UnsupportedVersion) => "install matching versions of program and cluster",
        Some(Status::NotServedHere | Status::BadFrame) => {
            "give the controller's address: something else listens there"
        }
        _ => "see that the controller runs and that the address is its own",
    }
}

/// Whether the Python package is there, in the version of this program.
pub fn python(settings: &Settings) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    match interpreter::find(settings.python()) {
        Ok((path, version)) if version == own => {
            Finding::ok("python", format!("{} has the package, version {version}", path.display()))
        }
        Ok((path, version)) => Finding::warn(
            "python",
            format!("{} has version {version}, this program is {own}", path.display()),
            "install the wheel that this program came with",
        ),
        Err(e) => Finding::warn(
            "python",
            e.to_string(),
            "only Python programs and `honeycomb demo` need it",
        ),
    }
}

/// Whether the folders of cluster file and configuration can be used, and the cluster file is safe.
pub fn folders(settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    match settings.cluster_file() {
        Ok(path) => {
            found.push(writable("cluster file", &path, Grade::Fail));
            if let Err(e) = ClusterFile::read(&path) {
                found.push(Finding::fail("cluster file", e.to_string(), "remove it, or chmod 600"));
            }
        }
        Err(e) => found.push(Finding::fail("cluster file", e.to_string(), "set HOME")),
    }
    if let Some(path) = default_file() {
        found.push(writable("config folder", &path, Grade::Warn));
    }
    found
}

/// Whether a file could be made: its folder, or the nearest above it that is there, can be written.
fn writable(check: &'static str, file: &Path, grade: Grade) -> Finding {
    let above = file.ancestors().skip(1);
    // A relative path's last ancestor is empty: this very folder.
    let mut above = above.map(|f| if f.as_os_str().is_empty() { Path::new(".") } else { f });
    let folder = above.find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if folder.is_dir() && rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        let free = rustix::fs::statvfs(folder).map_or(0, |found| found.f_bavail * found.f_frsize);
        let text = format!("{} can be written ({} free)", file.display(), size::show(free));
        return Finding::ok(check, text);
    }
    let text =
        format!("{} cannot be written: {} is not yours to write", file.display(), folder.display());
    let remedy = "name another place (--cluster-file, HONEYCOMB_CONFIG), or mend its permissions";
    Finding { check, grade, text, remedy: Some(remedy.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_on_loopback_of_a_controller_elsewhere_is_named() {
        let server = |address: &str| ServerInfo {
            server: 2,
            address: address.into(),
            alive: true,
            ..ServerInfo::default()
        };
        for address in ["127.0.0.1:43777", "[::1]:43777", "localhost:43777"] {
            // Something of this machine may accept at that port.
            let found = judge_server("10.77.0.1:7420", &server(address), Ok(())).unwrap();
            assert_eq!(found.grade, Grade::Fail);
            assert!(
                found.text.contains(&format!("memory server 2 at {address}")),
                "{}",
                found.text
            );
            assert!(found.remedy.unwrap().contains("--listen"));
            assert!(judge_server("127.0.0.1:7420", &server(address), Ok(())).is_none());
        }
        assert!(judge_server("10.77.0.1:7420", &server("10.77.0.2:7421"), Ok(())).is_none());
        let refused = Err(io::ErrorKind::ConnectionRefused.into());
        let found = judge_server("10.77.0.1:7420", &server("10.77.0.2:7421"), refused).unwrap();
        assert!(found.text.contains("memory server 2 at 10.77.0.2:7421 cannot be reached"));
    }
}
