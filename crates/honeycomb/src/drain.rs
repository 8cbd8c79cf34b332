//! `drain`: drains a memory server.

use crate::config::{Given, Reach};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::show::drain_state;
use crate::wait::{Patience, seconds};
use clap::Args;
use honeycomb_client::Client;
use honeycomb_env::Clock;
use honeycomb_wire::Status;
use honeycomb_wire::messages::ServerInfo;
use serde_json::json;
use std::time::Duration;

/// The interval at which --wait polls the server's state.
const LOOK: Duration = Duration::from_millis(100);

/// Drains a memory server: it gets no new blocks, its data moves away, then it exits.
///
/// `honeycomb status` shows the ADDRESS. Key-value stores, files and queues are migrated to other servers,
/// and large values are rewritten there; structures of custom kinds stay until their leases end. Clients
/// continue without interruption. The last server that accepts blocks cannot be drained. Without --wait, the
/// command returns at once; `honeycomb status` shows the blocks that the server still waits for.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb drain $ADDRESS
  honeycomb drain $ADDRESS --wait 60
  honeycomb drain $ADDRESS --cancel   # it accepts blocks again")]
pub struct DrainArgs {
    /// The server, HOST:PORT
    address: String,
    /// Cancel the drain: the server accepts blocks again, if it has not exited
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    /// Wait until the server has exited, at most this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

fn find(client: &Client, address: &str) -> CommandResult<Option<ServerInfo>> {
    Ok(client.status()?.servers.into_iter().find(|server| server.address == address))
}

/// `honeycomb drain`.
pub fn drain(args: &DrainArgs) -> CommandResult {
    let client = args.given.client()?;
    client.drain_server(&args.address, args.cancel)?;
    let patience = Patience::new(Some(args.wait.unwrap_or_default()));
    let clock = Clock::start();
    let server = loop {
        let server = find(&client, &args.address)?;
        let goes = server.as_ref().is_some_and(|server| server.drain != 0);
        if !goes || args.cancel || patience.over() {
            break server;
        }
        clock.sleep_until(clock.now() + LOOK.min(patience.left()));
    };
    if let (Some(server), Some(_)) = (&server, args.wait) {
        let text = format!(
            "memory server {} has not exited{}: {}",
            args.address,
            patience.shown(),
            waits_for(server)
        );
        return Err(Failure::new(Status::DeadlineExceeded, text));
    }
    let (state, waits) = match &server {
        Some(server) => (drain_state(server), server.drain_waits.as_str()),
        None => ("gone", ""),
    };
    args.output.print(&json!({ "address": args.address, "state": state, "waits": waits }), || {
        let waits = if waits.is_empty() { String::new() } else { format!(": {waits}") };
        format!("memory server {} is {state}{waits}", args.address)
    });
    Ok(())
}

fn waits_for(server: &ServerInfo) -> String {
    match (server.drain, server.drain_waits.is_empty()) {
        (0, _) => "its drain was cancelled".into(),
        (_, true) => "it is empty and about to exit".into(),
        _ => format!("it waits for {}", server.drain_waits),
    }
}
