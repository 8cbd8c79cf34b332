//! The controller's commands, and the shard that executes each.

use super::Link;
use crate::flush::{ControllerRequest, FlushJob, FlushWhat};
use crate::lots::Lots;
use crate::notes::Note;
use crate::shard::{BlockMessage, BlockOwner};
use honeycomb_transport::{ConnId, Net, ReplyPayload};
use honeycomb_types::{BlockAt, Generation, JobId, Kind, Marks, PrefixId, StructureId, TierIx};
use honeycomb_wire::Field;
use honeycomb_wire::messages::{
    BeginImportRequest, CommitCustomFlushRequest, CommitFlushRequest, CutBlockRequest,
    EndCopiesRequest, EndImportRequest, EvacuateRequest, FlushBlockRequest, FreeBlockRequest,
    KindName, LendBlocksReply, LendBlocksRequest, LowerBlockRequest, OpenBlockRequest,
    QueueAheadRequest, ReleaseReply, ReleaseRequest, SetGenerationRequest, SweepObjectsRequest,
    ThawBlockRequest,
};
use honeycomb_wire::{Malformed, Op, ReplyHeader, RequestHeader, Status};
use std::collections::hash_map::Entry;
use std::time::Duration;

/// The request of a manifest, and the names of the custom kinds in it.
fn custom_commit(args: &[u8]) -> Result<(CommitFlushRequest, Vec<KindName>), Malformed> {
    let body = CommitCustomFlushRequest::decode(args)?;
    let CommitCustomFlushRequest {
        directory,
        lineage,
        number,
        job_name,
        address,
        structures,
        below,
        kinds,
    } = body;
    let body =
        CommitFlushRequest { directory, lineage, number, job_name, address, structures, below };
    Ok((body, kinds))
}

impl Link {
    pub(crate) fn on_request(
        &mut self,
        net: &mut Net,
        from: ConnId,
        header: &RequestHeader,
        args: &[u8],
        lots: &mut Lots,
    ) {
        if header.op == Op::LendBlocks {
            let wanted = LendBlocksRequest::decode(args).map_err(|e| e.to_string());
            let set = wanted.and_then(|body| {
                let lent = lots.set(self.controller, &body.lots);
                lent.ok_or_else(|| "the request does not match the cores of this server".to_owned())
            });
            return match set {
                Ok(lent) => {
                    let header = ReplyHeader::new(Status::Ok, header.request, 0);
                    let body = LendBlocksReply { lent }.encode();
                    net.reply(from, header, &body, ReplyPayload::Copy(&[]));
                }
                Err(text) => net.refuse(from, header.request, Status::BadFrame, &text),
            };
        }
        if header.op == Op::Release {
            return match ReleaseRequest::decode(args) {
                Ok(ReleaseRequest { stay }) => {
                    self.leaving.released = !stay;
                    let header = ReplyHeader::new(Status::Ok, header.request, 0);
                    net.reply(from, header, &ReleaseReply {}.encode(), ReplyPayload::Copy(&[]));
                }
                Err(e) => net.refuse(from, header.request, Status::BadFrame, &e.to_string()),
            };
        }
        if let Err((status, text)) = self.command(header, args) {
            net.refuse(from, header.request, status, &text);
        }
    }

    fn errand(&self, header: &RequestHeader) -> ControllerRequest {
        ControllerRequest { controller: self.controller, link: self.links, request: header.request }
    }

    /// Passes a command of the controller to its shard.
    fn command(&mut self, header: &RequestHeader, args: &[u8]) -> Result<(), (Status, String)> {
        let malformed = |e: honeycomb_wire::Malformed| (Status::BadFrame, e.to_string());
        let errand = self.errand(header);
        let (at, note) = match header.op {
            Op::OpenBlock => {
                let body = OpenBlockRequest::decode(args).map_err(malformed)?;
                let owner = BlockOwner::try_from(&body)?;
                let journal = body.journal.into_iter().next().map(Box::new);
                (owner.at, Note::Open(owner, journal, errand))
            }
            Op::FreeBlock => {
                let body = FreeBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                (at, Note::Free(at, errand))
            }
            Op::LowerBlock => {
                let body = LowerBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                (at, Note::Lower(at, TierIx(body.tier), errand))
            }
            Op::FlushBlock => {
                let body = FlushBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                let range = (body.start, body.end);
                let note = match body.live {
                    live if body.cut => Note::WriteCut(at, body.object, live, errand),
                    0 => Note::Flush(at, range, body.object, errand),
                    live => Note::Copy(at, range, body.object, live, errand),
                };
                (at, note)
            }
            Op::CutBlock => {
                let body = CutBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                let hold = Duration::from_millis(body.hold_ms as u64);
                (at, Note::Cut(at, (body.start, body.end), body.live, hold, errand))
            }
            Op::ThawBlock => {
                let body = ThawBlockRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                (at, Note::Thaw(at, body.live, errand))
            }
            Op::CommitFlush => {
                let body = CommitFlushRequest::decode(args).map_err(malformed)?;
                let what = FlushWhat::Commit(Box::new(body), Vec::new());
                return self.flusher.give(FlushJob { errand, what });
            }
            Op::CommitCustomFlush => {
                let (body, kinds) = custom_commit(args).map_err(malformed)?;
                let what = FlushWhat::Commit(Box::new(body), kinds);
                return self.flusher.give(FlushJob { errand, what });
            }
            Op::SweepObjects => {
                let body = SweepObjectsRequest::decode(args).map_err(malformed)?;
                let what = FlushWhat::Sweep(Box::new(body));
                return self.flusher.give(FlushJob { errand, what });
            }
            Op::QueueAhead => {
                let body = QueueAheadRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                let ahead = BlockMessage::Ahead { items: body.items, bytes: body.bytes };
                (at, Note::Message(at, ahead, Some(errand)))
            }
            Op::Evacuate => {
                let body = EvacuateRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                (at, Note::Evacuate(at, errand))
            }
            Op::BeginImport => {
                let body = BeginImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                let range = (body.start, body.end);
                (at, Note::BeginImport(at, body.move_id, range, errand))
            }
            Op::EndImport => {
                let body = EndImportRequest::decode(args).map_err(malformed)?;
                let at = BlockAt::of(body.block, body.epoch);
                let note = Note::EndImport(at, body.move_id, body.commit, errand);
                (at, note)
            }
            Op::SetGeneration => {
                let body = SetGenerationRequest::decode(args).map_err(malformed)?;
                let (prefix, generation) = (PrefixId(body.prefix), Generation(body.generation));
                // It is done when every shard has executed it. A repetition meanwhile is answered at that
                // time, not when some shards have executed it twice.
                return self.post_all(errand, || Note::SetGeneration(prefix, generation, errand));
            }
            Op::EndCopies => {
                let live = EndCopiesRequest::decode(args).map_err(malformed)?.live;
                return self.post_all(errand, || Note::EndCopies(live, errand));
            }
            op => {
                return Err((
                    Status::NotServedHere,
                    format!("a memory server does not serve {}", op.name()),
                ));
            }
        };
        let shard = at.block.shard().0;
        let Some(mailbox) = self.shards.get(shard as usize) else {
            return Err((Status::UnknownBlock, format!("this server has no shard {shard}")));
        };
        self.post(mailbox, note);
        Ok(())
    }

    /// Posts a command to every shard.
    fn post_all(
        &mut self,
        errand: ControllerRequest,
        note: impl Fn() -> Note,
    ) -> Result<(), (Status, String)> {
        let Entry::Vacant(left) = self.shared.entry(errand.request) else { return Ok(()) };
        left.insert(self.shards.len());
        for shard in &self.shards {
            self.post(shard, note());
        }
        Ok(())
    }
}

impl TryFrom<&OpenBlockRequest> for BlockOwner {
    type Error = (Status, String);

    /// Refuses an unknown kind code, and invalid marks.
    fn try_from(body: &OpenBlockRequest) -> Result<BlockOwner, (Status, String)> {
        let kind = Kind::from_code(body.kind)
            .ok_or_else(|| (Status::WrongKind, format!("unknown kind code {:#x}", body.kind)))?;
        let (high, low) = (body.high_mark, body.low_mark);
        let marks = Marks::new(high, low, Marks::default()).ok_or_else(|| {
            (Status::InvalidArgument, format!("the marks {high} % and {low} % are not valid"))
        })?;
        Ok(BlockOwner {
            at: BlockAt::of(body.block, body.epoch),
            job: JobId(body.job),
            prefix: PrefixId(body.prefix),
            structure: StructureId(body.structure),
            generation: Generation(body.generation),
            kind,
            start: body.start,
            end: body.end,
            max_items: body.max_items,
            max_bytes: body.max_bytes,
            first: body.first,
            marks,
            importing: body.importing,
            tier: TierIx(body.tier),
            capacity: body.capacity,
        })
    }
}
