//! Flushes on request while a prefix lives, and prefixes that are being loaded.

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

/// A flush that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushTicket {
    /// Its number.
    pub number: u64,
    /// Its destination, in full.
    pub place: String,
}

/// The progress of a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushProgress {
    /// Its manifest is written.
    pub done: bool,
    /// Blocks to be written, as far as is known.
    pub parts: u32,
    /// Of these, the blocks that are written.
    pub parts_done: u32,
    /// Bytes that are written.
    pub bytes: u64,
    /// Why the last attempt failed, if one did; the flush is retried.
    pub failing: Option<String>,
}

impl Client {
    /// Begins to write the content of a live prefix (Table 1, flushAddrPrefix): to a path of names
    /// under the servers' `flush_root` and the job's name, or to a place given as a URL. The prefix
    /// stays usable and does not expire meanwhile. If a flush of this prefix to this place is in
    /// progress, it is returned.
    pub fn begin_flush(&self, job: JobId, path: &str, place: &str) -> Result<FlushTicket, Error> {
        self.begin_flush_above(job, path, place, &[])
    }

    /// The same for the uppermost prefix of a subtree, after the flush of its descendants: `below`
    /// has their paths relative to it. Its manifest names them.
    pub fn begin_flush_above(
        &self,
        job: JobId,
        path: &str,
        place: &str,
        below: &[String],
    ) -> Result<FlushTicket, Error> {
        self.begin(job, path, place, below, false)
    }

    /// Begins to write the content of a live prefix at one moment, together with the content of the
    /// prefixes in `below` at the same moment (their paths relative to it), each to its own path at
    /// the place (a checkpoint). All blocks freeze for a moment, and writers wait for its end. The
    /// flush numbers of the descendants follow that of the ticket, in their order; the ticket's own
    /// flush is done when all are.
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

    /// The progress of a flush; an error if it failed: `DeadlineExceeded` if a barrier found no
    /// moment at which all blocks were frozen.
    pub fn flush_progress(&self, job: JobId, number: u64) -> Result<FlushProgress, Error> {
        let body = FlushInfoRequest { job: job.0, flush: number };
        let reply: FlushInfoReply = self.ask(Op::FlushInfo, &body)?;
        if reply.state == 4 {
            let text = format!("the flush failed: {}", reply.message);
            return Err(Error::new(Status::Removed, text));
        }
        if reply.state == 5 {
            return Err(Error::new(Status::DeadlineExceeded, reply.message));
        }
        Ok(FlushProgress {
            done: reply.state == 3,
            parts: reply.parts,
            parts_done: reply.parts_done,
            bytes: reply.bytes,
            failing: (reply.state == 2).then_some(reply.message),
        })
    }

    /// The flush of a live prefix to a place that is in progress and can be cancelled, if there is
    /// one.
    pub fn flush_under_way(
        &self,
        job: JobId,
        path: &str,
        place: &str,
    ) -> Result<Option<FlushTicket>, Error> {
        let body = LocateFlushRequest { job: job.0, place: place.into(), path: path.into() };
        let reply: LocateFlushReply = self.ask(Op::LocateFlush, &body)?;
        let ticket = FlushTicket { number: reply.flush, place: reply.place };
        Ok(Some(ticket).filter(|ticket| ticket.number != 0))
    }

    /// Cancels a flush, unless its manifest is already being written.
    pub fn cancel_flush(&self, job: JobId, number: u64) -> Result<(), Error> {
        let body = CancelFlushRequest { job: job.0, flush: number };
        self.ask::<_, CancelFlushReply>(Op::CancelFlush, &body).map(drop)
    }

    /// Writes the content of a live prefix and waits until it is complete. `look` gets the
    /// progress; if it returns `false`, the wait ends and the flush goes on.
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

    /// Waits for the end of a flush that was begun. `look` is as for `flush_prefix`.
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

    /// Ends a job and waits until its persistent data is written. `look` gets the progress; if it
    /// returns `false`, the wait ends and the flushes go on. Blocks and bytes count flushes that
    /// are not complete.
    pub fn close_job(
        &self,
        job: JobId,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<FlushProgress, Error> {
        self.deregister_job(job)?;
        self.await_close(job, look)
    }

    /// The same for a job that has ended.
    pub fn await_close(
        &self,
        job: JobId,
        look: &mut dyn FnMut(&FlushProgress) -> bool,
    ) -> Result<FlushProgress, Error> {
        let all = FlushTicket { number: 0, place: String::new() };
        self.await_flush(job, &all, look)
    }

    /// The full place of the data persisted under this path, by an earlier job of this name or by
    /// this one. Waits while a flush to it is in progress; `look` gets the progress, and ends the
    /// wait by returning `false`. The result says whether the place may hold nothing yet. If data
    /// for this place was lost with a server, the call fails, because the content there is older.
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
            let reply: LocateFlushReply = self.ask(Op::LocateFlush, &body)?;
            let progress = FlushProgress {
                done: false,
                parts: reply.parts,
                parts_done: reply.parts_done,
                bytes: reply.bytes,
                failing: (reply.state == 2).then_some(reply.message.clone()),
            };
            match reply.state {
                1 | 2 if look(&progress) => {}
                4 => {
                    let text = format!(
                        "the data to be flushed to {} was lost ({}); the data there now is from an \
                         earlier flush, and can be loaded by its full place",
                        reply.place, reply.message
                    );
                    return Err(Error::new(Status::DataLost, text));
                }
                _ => return Ok(reply.place),
            }
            clock.sleep_until(clock.now() + pause);
            pause = (pause * 2).min(FLUSH_LOOK_MAX);
        }
    }

    /// Makes a prefix that was created as loading available for opening.
    pub fn publish_prefix(&self, job: JobId, path: &str) -> Result<(), Error> {
        let body = PublishPrefixRequest { job: job.0, path: path.into() };
        self.ask::<_, PublishPrefixReply>(Op::PublishPrefix, &body).map(drop)
    }
}
