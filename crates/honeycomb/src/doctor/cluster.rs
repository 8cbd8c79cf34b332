//! Checks of the Honeycomb installation: settings, cluster, Python package, folders.

use super::{Finding, Grade};
use crate::cluster::{ClusterFile, ClusterPlace};
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

/// The longest wait for the cluster's answer: the look-up of a name has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for a server to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of servers to connect to, with one thread each.
const SERVERS_MAX: usize = 256;

/// Checks the settings, and environment variables that look like settings.
pub fn configuration(settings: &Settings) -> Vec<Finding> {
    let text = match settings.file() {
        Some(path) => format!("{} was read", path.display()),
        None => "no configuration file: defaults and the environment".into(),
    };
    let mut found = vec![Finding::ok("configuration", text)];
    for (name, near) in unknown_variables() {
        let remedy = match near {
            Some(near) => format!("did you mean {near}?"),
            None => "unset it; `honeycomb config show` lists the settings".into(),
        };
        let text = format!("the variable {name} is not a setting and has no effect");
        found.push(Finding::warn("environment", text, remedy));
    }
    found
}

/// The state of the cluster from a client's view.
struct ClusterState {
    round_trip: Duration,
    servers: usize,
    lost: usize,
    suspected: usize,
    free: u64,
    blocks: u64,
    /// Findings about servers that clients of this machine or of others cannot reach.
    unreached: Vec<Finding>,
}

/// Checks that the cluster answers, accepts the token, and has servers.
pub fn reach(clock: Clock, settings: &Settings) -> Vec<Finding> {
    let place = match ClusterPlace::find(settings) {
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
        return vec![Finding::fail("cluster", format!("cannot start a thread: {e}"), remedy)];
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

/// A missing cluster is a failure only if the settings name one.
fn not_found(settings: &Settings, e: &Failure) -> Finding {
    let unnamed = settings.address().is_none() && e.status() == Some(Status::Unavailable);
    match unnamed {
        true => Finding::warn(
            "cluster",
            "none is running here, and none is configured",
            "start one with `honeycomb start --background`; Python starts an embedded one when \
                needed",
        ),
        false => Finding::fail("cluster", e.to_string(), remedy(e.status())),
    }
}

fn ask(clock: Clock, place: &ClusterPlace) -> Result<ClusterState, Failure> {
    let client: Client = place.client()?;
    let began = clock.now();
    client.ping()?;
    let round_trip = clock.now().since(began);
    let status = client.status()?;
    Ok(ClusterState {
        round_trip,
        servers: status.servers.len(),
        lost: status.servers.iter().filter(|s| !s.alive && s.silent_ms == 0).count(),
        suspected: status.servers.iter().filter(|s| s.silent_ms > 0).count(),
        free: status.free,
        blocks: status.blocks,
        unreached: connect_to_all(&place.address, &status.servers),
    })
}

/// Connects to all live servers at the same time, and reports those that do not accept.
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

/// Whether an address is a loopback address.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// A server with a loopback address serves only clients of its own machine, even if a connection from here
/// succeeds: that connection may reach another process on this machine.
fn judge_server(controller: &str, server: &ServerInfo, reached: io::Result<()>) -> Option<Finding> {
    let named = format!("memory server {} at {}", server.server, server.address);
    let remedy = "restart it with --listen ADDRESS:PORT, or with --advertise and an address that \
                  clients can reach";
    if is_loopback(&server.address) && !is_loopback(controller) {
        let text = format!(
            "{named} is registered with a loopback address, but the controller at {controller} is \
             not: clients on other machines cannot reach its blocks"
        );
        return Some(Finding::fail("server", text, remedy));
    }
    let e = reached.err()?;
    let text = format!("{named} cannot be reached from here: {e}");
    Some(Finding::fail(
        "server",
        text,
        format!("check that it runs and that no firewall blocks it; else {remedy}"),
    ))
}

fn judge(address: &str, found: ClusterState) -> Vec<Finding> {
    let reached = format!(
        "{address} answers in {} us, accepts the token, and uses protocol {PROTOCOL_MAJOR} like \
         this program ({PROTOCOL_MAJOR}.{PROTOCOL_MINOR})",
        found.round_trip.as_micros()
    );
    let text =
        format!("{} memory servers, {} of {} blocks free", found.servers, found.free, found.blocks);
    let servers = match &found {
        ClusterState { blocks: 0, .. } => Finding::fail(
            "servers",
            format!("{text}: no structure can be created"),
            "start a server: honeycomb server --controller ... --token ...",
        ),
        ClusterState { lost: 1.., .. } => {
            let remedy = "find out why they ended, and restart them: their data is lost";
            Finding::warn("servers", format!("{text}, {} lost", found.lost), remedy)
        }
        ClusterState { suspected: 1.., .. } => {
            let remedy = "check that they run and are reachable: their data is lost if they send \
                nothing for server_loss_ms";
            Finding::warn("servers", format!("{text}, {} suspected", found.suspected), remedy)
        }
        ClusterState { free, blocks, .. } if *free < *blocks / 20 => {
            let remedy = "remove data (`honeycomb du` shows the largest prefixes), or add a server";
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
            "use the token of the running controller: a new controller has a new token"
        }
        Some(Status::PermissionDenied) => "fix the cause in the message, or use another token",
        Some(Status::UnsupportedVersion) => {
            "install the same version of this program and the cluster"
        }
        Some(Status::NotServedHere | Status::BadFrame) => {
            "use the controller's address: another program listens there"
        }
        _ => "check that the controller runs and that the address is right",
    }
}

/// Checks that the Python package is installed, in the version of this program.
pub fn python(settings: &Settings) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    match interpreter::find(settings.python()) {
        Ok((path, version)) if version == own => {
            Finding::ok("python", format!("{} has the package, version {version}", path.display()))
        }
        Ok((path, version)) => Finding::warn(
            "python",
            format!("{} has version {version}, this program is {own}", path.display()),
            "install the wheel of this program's version",
        ),
        Err(e) => Finding::warn(
            "python",
            e.to_string(),
            "only Python programs and `honeycomb demo` need it",
        ),
    }
}

/// Checks that the folders of the cluster file and the configuration are usable, and the cluster file
/// private.
pub fn folders(settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    match settings.cluster_file() {
        Ok(path) => {
            found.push(writable("cluster file", &path, Grade::Fail));
            if let Err(e) = ClusterFile::read(&path) {
                let remedy = "remove the file, or chmod 600";
                found.push(Finding::fail("cluster file", e.to_string(), remedy));
            }
        }
        Err(e) => found.push(Finding::fail("cluster file", e.to_string(), "set HOME")),
    }
    if let Some(path) = default_file() {
        found.push(writable("config folder", &path, Grade::Warn));
    }
    found
}

/// Checks that a file could be created: its folder, or the nearest existing parent, is writable.
fn writable(check: &'static str, file: &Path, grade: Grade) -> Finding {
    let above = file.ancestors().skip(1);
    // The last ancestor of a relative path is empty: the current folder.
    let mut above = above.map(|f| if f.as_os_str().is_empty() { Path::new(".") } else { f });
    let folder = above.find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if folder.is_dir() && rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        let free = rustix::fs::statvfs(folder).map_or(0, |found| found.f_bavail * found.f_frsize);
        let text = format!("{} can be written ({} free)", file.display(), size::show(free));
        return Finding::ok(check, text);
    }
    let text =
        format!("{} cannot be written: no write access to {}", file.display(), folder.display());
    let remedy = "set another path (--cluster-file, HONEYCOMB_CONFIG), or fix the permissions";
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
            // Another process on this machine may accept at that port.
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
