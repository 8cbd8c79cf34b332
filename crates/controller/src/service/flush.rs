//! Flushes and loads that clients request.

use super::{ClientRequest, ControllerService, RefusedRequest, refusal, unexpected};
use crate::translate;
use honeycomb_catalog::{Command, Reply};
use honeycomb_types::JobId;
use honeycomb_wire::messages::{
    CancelFlushRequest, FlushInfoReply, FlushInfoRequest, FlushPrefixReply, FlushPrefixRequest,
    LocateFlushReply, LocateFlushRequest, PublishPrefixRequest,
};
use honeycomb_wire::{Field, Op};

impl ControllerService {
    pub(super) fn serve_flush(
        &mut self,
        asked: ClientRequest<'_>,
    ) -> Result<Vec<u8>, RefusedRequest> {
        let ClientRequest { now, actor, op, .. } = asked;
        let reply = match op {
            Op::FlushPrefix => {
                let q = asked.read::<FlushPrefixRequest>()?;
                let (job, path, place) = (JobId(q.job), q.path.as_str(), q.place.as_str());
                let below: Vec<&str> = q.below.iter().map(String::as_str).collect();
                let (below, barrier) = (&below[..], q.barrier);
                let flush = Command::FlushPrefix { actor, job, path, place, below, barrier };
                self.apply(now, flush)
            }
            Op::FlushInfo => {
                let q = asked.read::<FlushInfoRequest>()?;
                let (job, number) = (JobId(q.job), q.flush);
                self.apply(now, Command::FlushInfo { actor, job, number })
            }
            Op::CancelFlush => {
                let q = asked.read::<CancelFlushRequest>()?;
                let (job, number) = (JobId(q.job), q.flush);
                self.apply(now, Command::CancelFlush { actor, job, number })
            }
            Op::LocateFlush => {
                let q = asked.read::<LocateFlushRequest>()?;
                let (job, place, path) = (JobId(q.job), q.place.as_str(), q.path.as_str());
                self.apply(now, Command::LocateFlush { actor, job, place, path })
            }
            _ => {
                let q = asked.read::<PublishPrefixRequest>()?;
                self.apply(now, Command::PublishPrefix { actor, job: JobId(q.job), path: &q.path })
            }
        };
        match reply.map_err(refusal)? {
            Reply::Done => Ok(Vec::new()),
            Reply::Flushing { number, place } => {
                Ok(FlushPrefixReply { flush: number, place: place.into() }.encode())
            }
            Reply::FlushInfo(progress) => {
                let (state, message) = translate::flush_state(&progress.state);
                let (parts, parts_done, bytes) = (progress.parts, progress.done, progress.bytes);
                Ok(FlushInfoReply { state, message, parts, parts_done, bytes }.encode())
            }
            Reply::FlushPlace { place, progress, live } => {
                let (state, message) = translate::flush_state(&progress.state);
                let (parts, parts_done, bytes) = (progress.parts, progress.done, progress.bytes);
                let (place, flush) = (place.into(), live.unwrap_or_default());
                let reply =
                    LocateFlushReply { place, state, message, parts, parts_done, bytes, flush };
                Ok(reply.encode())
            }
            other => unexpected(op, &other),
        }
    }
}
