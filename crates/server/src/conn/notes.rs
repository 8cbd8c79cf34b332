//! Messages to a shard from the other threads of its server: the link, other cores, disks.

use super::ShardService;
use super::origins::RequestSource;
use crate::flush::{ControllerRequest, FlushJob, FlushWhat};
use crate::kept::KeptBytes;
use crate::notes::{LinkNote, Note, OwnedPayload};
use honeycomb_structures::Answer;
use honeycomb_transport::{Net, ReplyPayload};
use honeycomb_types::{BlockId, Time};
use honeycomb_wire::messages::{CutBlockReply, ThawBlockReply};
use honeycomb_wire::{Field, Status};
use std::sync::Arc;

impl ShardService {
    pub(super) fn hear(&mut self, net: &mut Net, now: Time, note: Note) {
        match note {
            Note::Adopt(conn, peer) => {
                if let Ok(id) = net.attach(conn) {
                    if peer.cluster {
                        net.yields(id);
                    }
                    self.peers.insert(id, peer);
                }
            }
            Note::Forward(request) => self.run_forwarded(now, *request),
            Note::Returned(to, header, args, payload) => {
                let payload = match payload {
                    OwnedPayload::Bytes(bytes) => ReplyPayload::Shared(bytes),
                    OwnedPayload::Pinned(pin) => ReplyPayload::Pinned(pin),
                };
                net.returned(to, header.request, args.len() + payload.len());
                net.reply(to, header, &args, payload);
            }
            Note::HungUp(origin, conn) => {
                let same = (origin, conn);
                self.forget_waiting(
                    |o| matches!(o, RequestSource::Shard(ix, to, _) if (*ix, *to) == same),
                );
            }
            Note::Joined { server, token_key, grant_key, clock_offset_ms } => {
                self.membership.joins(server, token_key, grant_key);
                self.shard.owners().reset(server);
                self.set_offset(clock_offset_ms);
            }
            Note::Holdings { controller, round } => {
                // The controller repeats the copies that were in progress.
                self.shard.on_exports(now, |work| work.forget_copies(controller));
                let mut blocks = self.shard.reports().holdings();
                blocks.retain(|held| BlockId(held.block).server().controller() == controller);
                self.outgoing.tell_link(LinkNote::Holdings {
                    controller,
                    shard: self.ix,
                    round,
                    blocks,
                });
            }
            Note::Left(controller) => self.shard.owners().leave(controller),
            Note::ClockOffset(offset_ms) => self.set_offset(offset_ms),
            Note::Open(owner, journal, errand) => self.open_block(owner, journal, errand),
            Note::JournalBegun(at, errand, outcome) => {
                if outcome.is_ok() {
                    self.shard.on_journals(now, |work| work.begun(at));
                }
                let outcome = outcome.map(|()| Vec::new());
                self.outgoing.tell_link(LinkNote::Done { errand, outcome });
            }
            Note::Journaled(at, number, outcome) => {
                self.shard.on_journals(now, |work| work.written(at, number, outcome));
            }
            Note::Free(at, errand) => {
                let done = self.shard.owners().free(at);
                let refused = (!done).then(|| {
                    let text = "the server does not own the block";
                    Answer::refuse(Status::UnknownBlock, text)
                });
                self.confirm(errand, refused);
            }
            Note::Flush(at, range, object, errand) => {
                let kept = self.shard.owners().retain(at, range);
                self.give_part(errand, object, kept.map(|bytes| (bytes, true)));
            }
            Note::Copy(at, range, object, live, errand) => {
                let copied = self.shard.on_exports(now, |work| work.copy(at, range, live));
                self.give_part(errand, object, copied);
            }
            Note::Cut(at, range, live, hold, errand) => {
                let stands =
                    self.shard.on_exports(now, |work| work.checkpoint(at, range, live, hold));
                let reply = stands.map(|sealed| CutBlockReply { sealed }.encode());
                self.done(errand, reply);
            }
            Note::Thaw(at, live, errand) => {
                let stood = self.shard.on_exports(now, |work| work.thaw(at, live));
                self.done(errand, Ok(ThawBlockReply { stood }.encode()));
            }
            Note::WriteCut(at, object, live, errand) => {
                let cut = self.shard.on_exports(now, |work| work.checkpoint_content(at, live));
                self.give_part(errand, object, cut);
            }
            Note::EndCopies(live, errand) => {
                self.shard.on_exports(now, |work| work.end_copies(errand.controller, live));
                self.confirm(errand, None);
            }
            Note::SetGeneration(prefix, generation, errand) => {
                self.shard.owners().set_generation(prefix, generation);
                self.confirm(errand, None);
            }
            Note::Message(at, message, errand) => {
                self.shard.receive(now, at, message);
                if let Some(errand) = errand {
                    self.confirm(errand, None);
                }
            }
            Note::Move(at, word) => self.shard.on_exports(now, |work| work.move_word(at, word)),
            Note::BeginImport(at, id, (start, end), errand) => {
                let refused =
                    self.shard.on_imports(now, |work| work.begin(at, id, start, end)).err();
                self.confirm(errand, refused);
            }
            Note::Evacuate(at, errand) => {
                let refused = self.shard.on_exports(now, |work| work.evacuate(at)).err();
                self.confirm(errand, refused);
            }
            Note::EndImport(at, id, commit, errand) => {
                let refused = self.shard.on_imports(now, |work| work.end(at, id, commit)).err();
                self.confirm(errand, refused);
            }
            Note::Located(server, found) => {
                self.shard.on_extents(now, |work| work.server_located(server, found))
            }
            Note::Copied(at, copy) => self.copied(net, now, at, copy),
            Note::Lower(at, tier, errand) => {
                let refused = self.shard.tiers().change_tier(at, tier).err();
                self.confirm(errand, refused);
            }
            Note::Io(id, done) => self.shard.tiers().io_done(now, id, done),
            Note::Stop => self.stopped = true,
        }
    }

    /// Confirms a command of the controller.
    pub(super) fn confirm(&mut self, errand: ControllerRequest, refused: Option<Answer>) {
        self.done(errand, refused.map_or(Ok(Vec::new()), Err));
    }

    fn done(&mut self, errand: ControllerRequest, reply: Result<Vec<u8>, Answer>) {
        let refusal = |a: Answer| (a.status, String::from_utf8_lossy(&a.args).into_owned());
        self.outgoing.tell_link(LinkNote::Done { errand, outcome: reply.map_err(refusal) });
    }

    /// Passes the content of a block to the thread that writes it.
    fn give_part(
        &mut self,
        errand: ControllerRequest,
        object: String,
        held: Result<(Arc<KeptBytes>, bool), Answer>,
    ) {
        let given = match held {
            Ok((bytes, sealed)) => {
                let parts = self.helpers.parts();
                let what = FlushWhat::Part { object, bytes, parts, sealed };
                self.helpers.flusher.give(FlushJob { errand, what })
            }
            Err(answer) => {
                let text = String::from_utf8_lossy(&answer.args).into_owned();
                Err((answer.status, text))
            }
        };
        if let Err(refusal) = given {
            self.outgoing.tell_link(LinkNote::Done { errand, outcome: Err(refusal) });
        }
    }

    fn set_offset(&mut self, offset_ms: i64) {
        self.membership.set_clock_offset(offset_ms);
        self.shard.set_clock_offset(offset_ms);
    }
}
