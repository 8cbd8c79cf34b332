//! `drain`: takes a memory server out.

use crate::config::{Given, Reach};
use crate::failure::{Failure, Outcome};
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

/// How often it is looked at, for one who waits.
const LOOK: Duration = Duration::from_millis(100);

/// Takes a memory server out: it is given nothing more, and ends when it has nothing.
///
/// ADDRESS is that of `honeycomb status`. Key-value stores, files and queues move to other servers, and large
/// values are written anew there; structures of custom kinds stay until their leases end. Clients go on. The
/// last server that takes blocks is not taken out. Without --wait the command returns at once; `honeycomb
/// status` tells what the server waits for.
#[derive(Args)]
#[command(after_help = "Examples:
  honeycomb drain $ADDRESS
  honeycomb drain $ADDRESS --wait 60
  honeycomb drain $ADDRESS --cancel   # it takes blocks again")]
pub struct DrainArgs {
    /// The server, HOST:PORT
    address: String,
    /// Let it take blocks again, if it has not ended
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    /// Wait until it has ended, at most so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
    #[command(flatten)]
    given: Given<Reach>,
    #[command(flatten)]
    output: Output,
}

fn find(client: &Client, address: &str) -> Outcome<Option<ServerInfo>> {
    Ok(client.status()?.servers.into_iter().find(|server| server.address == address))
}

/// `honeycomb drain`.
pub fn drain(args: &DrainArgs) -> Outcome {
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
            "memory server {} has not ended{}: {}",
            args.address,
            patience.told(),
            waits_for(server)
        );
        return Err(Failure::new(Status::DeadlineExceeded, text));
    }
    let (state, waits) = match &server {
        Some(server) => (drain_state(server), server.drain_waits.as_str()),
        None => ("gone", ""),
    };
    args.output.tell(&json!({ "address": args.address, "state": state, "waits": waits }), || {
        let waits = if waits.is_empty() { String::new() } else { format!(": {waits}") };
        format!("memory server {} is {state}{waits}", args.address)
    });
    Ok(())
}

fn waits_for(server: &ServerInfo) -> String {
    match (server.drain, server.drain_waits.is_empty()) {
        (0, _) => "somebody has called it back".into(),
        (_, true) => "nothing is there any more".into(),
        _ => format!("there are {}", server.drain_waits),
    }
}
