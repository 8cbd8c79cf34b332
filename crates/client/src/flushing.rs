//! Flushes that are asked for while a prefix lives, and prefixes that are being loaded.

use crate::{Client, Error};
use honeycomb_types::JobId;
use honeycomb_types::limits::{FLUSH_LOOK_FIRST, FLUSH_LOOK_MAX};
use honeycomb_wire::messages::{
    CancelFlushReply, CancelFlushRequest, FlushInfoReply, FlushInfoRequest, FlushPrefixReply,
    FlushPrefixRequest, LocateFlushReply, LocateFlushRequest, PublishPrefixReply,
    PublishPrefixRequest,
};
use honeycomb_wire::{Op, Status};
use std::time::Duration;

/// A flush that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushTicket {
    /// Its number.
    pub number: u64,
    /// Where it goes, in full.
    pub place: String,
}

/// How far a flush is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushProgress {
    /// Its manifest is in its place.
    pub done: bool,
    /// Blocks that are to be written, as far as is known.
    pub parts: u32,
    /// Of these, those that are.
    pub parts_done: u32,
    /// Bytes that are written.
    pub bytes: u64,
    /// Why the last attempt failed, if one did: it is tried again.
    pub failing: Option<String>,
}

impl Client {
    /// Begins to write what a live prefix holds (Table 1, flushAddrPrefix): to a path of names below
    /// the servers' `flush_root` and the job's name, or to that place as a URL. The prefix goes on, and
    /// does not expire meanwhile. One that is under way for both is answered again.
    pub fn begin_flush(&self, job: JobId, path: &str, place: &str) -> Result<FlushTicket, Error> {
        self.begin_flush_above(job, path, place, &[])
    }

    /// The same of the uppermost prefix of a subtree, when those below it are flushed: `below` has their
    /// paths from it on. Its manifest names them.
    pub fn begin_flush_above(
        &self,
        job: JobId,
        path: &str,
        place: &str,
        below: &[String],
    ) -> Result<FlushTicket, Error> {
        self.begin(job, path, place, below, false)
    }

    /// Begins to write what a live prefix holds at one moment, and with it what those of `below` hold then
    /// (their paths from it on), each to its own path at the place (a checkpoint). All blocks stand still
    /// for a moment: who changes them waits for it. The numbers of those below follow that of the ticket,
    /// in their order; its own is done when all are.
    pub fn begin_barrier_flush(
        &self,
        job: JobId,
        path: &str,
        place: &str,
        below: &[String],
    ) -> Result<FlushTicket, Error> {
        self.begin(job, path, place, below, true)
    }

    fn begin(
        &self,
        job: JobId,
        path: &str,
        place: &str,
        below: &[String],
        barrier: bool,
    ) -> Result<FlushTicket, Error> {
        let (path, place, below) = (path.into(), place.into(), below.to_vec());
        let body = FlushPrefixRequest { job: job.0, path, place, below, barrier };
        let reply: FlushPrefixReply = self.ask(Op::FlushPrefix, &body)?;
        Ok(FlushTicket { number: reply.flush, place: reply.place })
    }

    /// How far it is; an error when it has come to nothing: `DeadlineExceeded` when a barrier found no
    /// moment at which all blocks stood still.
    pub fn flush_progress(&self, job: JobId, number: u64) -> Result<FlushProgress, Error> {
        let body = FlushInfoRequest { job: job.0, flush: number };
        let told: FlushInfoReply = self.ask(Op::FlushInfo, &body)?;
        if told.state == 4 {
            let text = format!("the flush failed: {}", told.message);
            return Err(Error::new(Status::Removed, text));
        }
        if told.state == 5 {
            return Err(Error::new(Status::DeadlineExceeded, told.message));
        }
        Ok(FlushProgress {
            done: told.state == 3,
            parts: told.parts,
            parts_done: told.parts_done,
            bytes: told.bytes,
            failing: (told.state == 2).then_some(told.message),
        })
    }

    /// The flush of a live prefix to a place that is under way and can be cancelled, if there is one.
    pub fn flush_under_way(
        &self,
        job: JobId,
        path: &str,
        place: &str,
    ) -> Result<Option<FlushTicket>, Error> {
        let body = LocateFlushRequest { job: job.0, place: place.into(), path: path.into() };
        let told: LocateFlushReply = self.ask(Op::LocateFlush, &body)?;
        let ticket = FlushTicket { number: told.flush, place: told.place };
        Ok(Some(ticket).filter(|ticket| ticket.number != 0))
    }

    /// Ends it, unless its manifest is being written already.
    pub fn cancel_flush(&self, job: JobId, number: u64) -> Result<(), Error> {
        let body = CancelFlushRequest { job: job.0, flush: number };
        self.ask::<_, CancelFlushReply>(Op::CancelFlush, &body).map(drop)
    }

    /// Writes what a live prefix holds and waits until it is whole. `look` is told how far it is, and
    /// ends the wait by `false`: the flush goes on.
    pub fn flush_prefix(
        &self,
        job: JobId,
        path: &str,
        place: &str,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<(FlushTicket, FlushProgress), Error> {
        let ticket = self.begin_flush(job, path, place)?;
        let progress = self.await_flush(job, &ticket, look)?;
        Ok((ticket, progress))
    }

    /// Waits until a flush is whole that was begun. `look` is as that of `flush_prefix`.
    pub fn await_flush(
        &self,
        job: JobId,
        ticket: &FlushTicket,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<FlushProgress, Error> {
        let clock = self.clock();
        let mut pause: Duration = FLUSH_LOOK_FIRST;
        loop {
            let progress = self.flush_progress(job, ticket.number)?;
            if !look(&progress) || progress.done {
                return Ok(progress);
            }
            clock.sleep_until(clock.now() + pause);
            pause = (pause * 2).min(FLUSH_LOOK_MAX);
        }
    }

    /// Ends a job and waits until what of it persists is written. `look` is told how far that is, and ends the
    /// wait by `false`: the flushes go on. Blocks and bytes are those of flushes that are not whole.
    pub fn close_job(
        &self,
        job: JobId,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<FlushProgress, Error> {
        self.deregister_job(job)?;
        self.await_close(job, look)
    }

    /// The same of a job that has ended.
    pub fn await_close(
        &self,
        job: JobId,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<FlushProgress, Error> {
        let all = FlushTicket { number: 0, place: String::new() };
        self.await_flush(job, &all, look)
    }

    /// Where what was persisted under this path is, in full: what an earlier job of this name has left, or
    /// this one. While a flush goes there it waits for its end; `look` is told how far it is, and ends the
    /// wait by `false`. The place may hold nothing yet: it tells. What was to go there and was lost with a
    /// server is an error, because what is there instead is older.
    pub fn persisted(
        &self,
        job: JobId,
        path: &str,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<String, Error> {
        let body = LocateFlushRequest { job: job.0, place: path.into(), path: String::new() };
        let clock = self.clock();
        let mut pause: Duration = FLUSH_LOOK_FIRST;
        loop {
            let told: LocateFlushReply = self.ask(Op::LocateFlush, &body)?;
            let progress = FlushProgress {
                done: false,
                parts: told.parts,
                parts_done: told.parts_done,
                bytes: told.bytes,
                failing: (told.state == 2).then_some(told.message.clone()),
            };
            match told.state {
                1 | 2 if look(&progress) => {}
                4 => {
                    let text = format!(
                        "what was to be flushed to {} was lost ({}); what is there now is of an \
                         earlier flush, and can be loaded by its place in full",
                        told.place, told.message
                    );
                    return Err(Error::new(Status::DataLost, text));
                }
                _ => return Ok(told.place),
            }
            clock.sleep_until(clock.now() + pause);
            pause = (pause * 2).min(FLUSH_LOOK_MAX);
        }
    }

    /// Lets a prefix that was created as loading be opened.
    pub fn publish_prefix(&self, job: JobId, path: &str) -> Result<(), Error> {
        let body = PublishPrefixRequest { job: job.0, path: path.into() };
        self.ask::<_, PublishPrefixReply>(Op::PublishPrefix, &body).map(drop)
    }
}
