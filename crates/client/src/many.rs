//! Many operations on one structure at a time: every request is sent before any reply is awaited.
//!
//! Each operation is the same call with the same steps as a single one (`Structure::advance`); this
//! module only chooses the next one to advance. Replies are taken in order of arrival, so that a
//! slow block or a lost server delays no other operation.

use crate::error::Error;
use crate::pool::IDLE_MAX;
use crate::socket::{PATIENCE, await_some};
use crate::structure::{Exchange, Flight, NextStep, Replied, SentRequest, Structure};
use crate::transport::ExchangeFailure;
use honeycomb_types::Time;

/// Requests of one call in progress at a time, each on its own connection. Fewer than the idle
/// connections of a pool, so that the next call can reuse them.
const FLIGHTS_MAX: usize = 48;
const _: () = assert!(FLIGHTS_MAX < IDLE_MAX);

/// The state of one operation.
#[allow(clippy::large_enum_variant)] // a few dozen are large at a time, and boxes would be moved too
enum FlightStage<'a, 'b> {
    /// It has not started.
    Waiting(Exchange<'a, 'b>),
    /// It continues at this time.
    Paused(Flight<'a, 'b>, Time),
    /// It awaits its reply, and its server has been silent since this time.
    Awaits(Flight<'a, 'b>, SentRequest, Time),
    Done(Result<Replied, Error>),
    /// Moved out while it is being advanced.
    Taken,
}

/// Runs all operations to their results, which are in the order of the operations. Each has its own
/// deadline, which counts from its beginning.
pub(crate) fn run_many(
    structure: &Structure,
    exchanges: Vec<Exchange<'_, '_>>,
) -> Vec<Result<Replied, Error>> {
    let mut stages: Vec<FlightStage<'_, '_>> =
        exchanges.into_iter().map(FlightStage::Waiting).collect();
    let (mut begun, mut done) = (0, 0);
    while done < stages.len() {
        let more = begun..stages.len().min(done + FLIGHTS_MAX);
        begun = more.end;
        begin(structure, &mut stages[more]);
        let under_way = begun - done;
        assert!(under_way <= FLIGHTS_MAX, "INV-33: {under_way} operations of one call are sent");
        step(structure, &mut stages[..begun]);
        let before = done;
        done = stages.iter().filter(|stage| matches!(stage, FlightStage::Done(_))).count();
        assert!(
            before <= done && done <= begun,
            "INV-16: {before}, then {done} of {begun} are done"
        );
    }
    let results = stages.into_iter().map(|stage| match stage {
        FlightStage::Done(result) => result,
        _ => unreachable!("the loop ends when all are done"),
    });
    results.collect()
}

/// Begins operations. Their deadlines count from the same moment: the first of them that has to connect
/// to a paused server waits its whole time, and the others then have none left.
fn begin<'a, 'b>(structure: &Structure, stages: &mut [FlightStage<'a, 'b>]) {
    let exchanges = stages.iter_mut().map(|stage| match take(stage) {
        FlightStage::Waiting(exchange) => structure.depart(exchange),
        _ => unreachable!("operations begin in their order"),
    });
    let flights: Vec<Flight<'a, 'b>> = exchanges.collect();
    for (stage, flight) in stages.iter_mut().zip(flights) {
        *stage = go_on(structure, flight);
    }
}

fn take<'a, 'b>(stage: &mut FlightStage<'a, 'b>) -> FlightStage<'a, 'b> {
    std::mem::replace(stage, FlightStage::Taken)
}

fn go_on<'a, 'b>(structure: &Structure, mut flight: Flight<'a, 'b>) -> FlightStage<'a, 'b> {
    match structure.advance(&mut flight) {
        NextStep::Sent(sent) => FlightStage::Awaits(flight, sent, structure.clock().now()),
        NextStep::Pause(pause) => FlightStage::Paused(flight, structure.clock().now() + pause),
        NextStep::Done(result) => FlightStage::Done(result),
    }
}

/// Waits until an operation can continue, and advances all that can.
fn step(structure: &Structure, stages: &mut [FlightStage<'_, '_>]) {
    let clock = structure.clock();
    let until = stages.iter().filter_map(next_at).min();
    let mut places = Vec::new();
    let mut waiting = Vec::new();
    for (place, stage) in stages.iter_mut().enumerate() {
        if let FlightStage::Awaits(_, sent, _) = stage {
            places.push(place);
            waiting.push(sent.transport.line());
        }
    }
    let Some(until) = until else {
        debug_assert!(
            stages.iter().all(|stage| matches!(stage, FlightStage::Done(_))),
            "INV-33: an operation of one call is not done, and waits for nothing"
        );
        return;
    };
    let ready = if waiting.is_empty() {
        clock.sleep_until(until);
        Ok(Vec::new())
    } else {
        await_some(&mut waiting, until, false)
    };
    match ready {
        Ok(ready) => {
            for place in ready.into_iter().map(|at| places[at]) {
                let awaited = matches!(stages[place], FlightStage::Awaits(..));
                assert!(awaited, "INV-16: a reply to operation {place} was not awaited");
                if let FlightStage::Awaits(mut flight, sent, _) = take(&mut stages[place]) {
                    structure.collect(&mut flight, sent);
                    stages[place] = go_on(structure, flight);
                }
            }
        }
        Err(e) => {
            for place in places {
                lose(structure, &mut stages[place], || ExchangeFailure::Lost {
                    sent: true,
                    why: e.to_string(),
                });
            }
        }
    }
    let now = clock.now();
    for stage in &mut *stages {
        if matches!(stage, FlightStage::Paused(_, at) if *at <= now)
            && let FlightStage::Paused(flight, _) = take(stage)
        {
            *stage = go_on(structure, flight);
        }
    }
    ask_about_the_silent(structure, stages, now);
}

/// When an operation needs attention if no reply arrives earlier.
fn next_at(stage: &FlightStage<'_, '_>) -> Option<Time> {
    match stage {
        FlightStage::Paused(_, at) => Some(*at),
        FlightStage::Awaits(flight, _, since) => Some(flight.deadline().min(*since + PATIENCE)),
        FlightStage::Waiting(_) | FlightStage::Done(_) | FlightStage::Taken => None,
    }
}

/// Gives up replies whose deadline has passed. If servers have been silent for a while, asks the
/// controller once: its reply about the structure holds for all of them.
fn ask_about_the_silent(structure: &Structure, stages: &mut [FlightStage<'_, '_>], now: Time) {
    let mut silent = false;
    let mut latest = now;
    for stage in &mut *stages {
        if let FlightStage::Awaits(flight, _, since) = stage {
            if now >= flight.deadline() {
                lose(structure, stage, || ExchangeFailure::Late { sent: true });
            } else if now.since(*since) >= PATIENCE {
                silent = true;
                latest = latest.max(flight.deadline());
            }
        }
    }
    if !silent {
        return;
    }
    let gone = structure.ask_whether_gone(latest);
    let asked = structure.clock().now();
    for stage in &mut *stages {
        let FlightStage::Awaits(_, _, since) = stage else { continue };
        if now.since(*since) < PATIENCE {
            continue;
        }
        *since = asked;
        if let Err(reason) = &gone {
            lose(structure, stage, || ExchangeFailure::Gone { sent: true, reason: reason.clone() });
        }
    }
}

fn lose(
    structure: &Structure,
    stage: &mut FlightStage<'_, '_>,
    why: impl FnOnce() -> ExchangeFailure,
) {
    let awaited = matches!(stage, FlightStage::Awaits(..));
    assert!(awaited, "INV-16: an operation that awaits no reply loses one");
    if let FlightStage::Awaits(mut flight, sent, _) = take(stage) {
        structure.lose(&mut flight, sent, why());
        *stage = go_on(structure, flight);
    }
}
