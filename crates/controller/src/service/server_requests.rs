//! Requests to memory servers, and the replies that wait for them.

use super::{ControllerService, PeerState, RefusedRequest, drain, moves};
use crate::outbox::{OutgoingMessage, Rests};
use crate::translate;
use honeycomb_catalog::{Command, Effect, StopFault, Written};
use honeycomb_transport::ConnId;
use honeycomb_types::limits::CONTROL_ARGS_MAX;
use honeycomb_types::{BlockAt, MoveId, ServerId, SessionId, Time};
use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, Status};

/// A reply that waits for requests to memory servers.
pub(super) struct Deferred {
    to: ConnId,
    session: SessionId,
    request: u64,
    op: Op,
    body: Vec<u8>,
    rests: Rests,
    left: usize,
    failure: Option<(Status, String)>,
}

impl Deferred {
    /// Whether the reply is for this connection.
    pub(super) fn is_for(&self, to: ConnId) -> bool {
        self.to == to
    }
}

/// A request from this controller to a memory server.
pub(crate) struct ServerRequest {
    pub(crate) server: ServerId,
    pub(crate) effect: Effect,
    /// Connection of the request; `None` if there was none.
    pub(crate) link: Option<ConnId>,
    deferred: Option<u64>,
}

impl ControllerService {
    /// The number of replies to clients that wait for memory servers.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Answers at the end of the round, or when the memory servers have completed the requests behind the
    /// answer: opened the blocks that it names, and fenced the blocks that it removes.
    pub(super) fn conclude(
        &mut self,
        now: Time,
        from: ConnId,
        header: &RequestHeader,
        body: Vec<u8>,
        rests: Rests,
    ) {
        let request = header.request;
        if matches!(header.op, Op::CommitMove | Op::CancelMove | Op::LeaveServer) {
            // The reply depends on no pending request. An emptied block must get it before the block is
            // freed, and a server before it is released.
            self.reply(from, request, body, rests);
            return self.dispatch(now, None);
        }
        let opens = self.effects.iter().filter(|e| is_awaited(e)).count();
        if opens == 0 {
            self.dispatch(now, None);
            return self.reply(from, request, body, rests);
        }
        let number = self.number();
        let session = self.peers[&from].session;
        let (to, op, left, failure) = (from, header.op, opens, None);
        let deferred = Deferred { to, session, request, op, body, rests, left, failure };
        let before = self.deferred.insert(number, deferred);
        assert!(before.is_none(), "INV-16: number {number} of a reply was given twice");
        self.dispatch(now, Some(number));
    }

    /// Whether the reply to this request still waits; if so, it will be sent on the connection of the last
    /// retry.
    pub(super) fn is_deferred(&mut self, to: ConnId, session: SessionId, request: u64) -> bool {
        let mut all = self.deferred.values_mut();
        let waiting = all.find(|d| (d.session, d.request) == (session, request));
        let Some(deferred) = waiting else { return false };
        let before = std::mem::replace(&mut deferred.to, to);
        // The earlier request came from another shard, which still waits for its answer.
        if let Some(PeerState { origin: Some(origin), .. }) = self.peers.get(&before) {
            let origin = *origin;
            self.peers.remove(&before);
            let busy = ReplyHeader::new(Status::Busy, request, super::BUSY_RETRY_US);
            let text = b"the request was retried over another connection".to_vec();
            self.siblings.answer(origin, busy, text);
        }
        true
    }

    /// Repeats the request to open blocks that a reply names and that are not open yet. The reply then waits
    /// for them, or says why they cannot be opened. Opening is idempotent.
    pub(super) fn await_open(&mut self, blocks: impl IntoIterator<Item = BlockAt>) {
        for at in blocks {
            let asked = |e: &Effect| matches!(e, Effect::OpenBlock { at: a, .. } if *a == at);
            if let Some(effect) = self.opening.get(&at)
                && !self.effects.iter().any(asked)
            {
                self.effects.push(effect.clone());
            }
        }
    }

    /// Sends the effects of the last command to their servers.
    pub(crate) fn dispatch(&mut self, now: Time, deferred: Option<u64>) {
        for effect in std::mem::take(&mut self.effects) {
            let number = self.number();
            match &effect {
                Effect::OpenBlock { server, at, .. } => {
                    // The loss of a server removes its blocks by their names.
                    let own = at.block.server();
                    assert_eq!(*server, own, "INV-01: {at:?} is opened at server {server}");
                    self.opening.insert(*at, effect.clone());
                }
                Effect::FreeBlock { at, .. } => {
                    self.opening.remove(at);
                }
                Effect::SetGeneration { prefix, generation, .. } => {
                    // A later repetition of an open request must not accept a grant that is revoked now.
                    let errands = self.errands.values_mut().map(|errand| &mut errand.effect);
                    for effect in self.opening.values_mut().chain(errands) {
                        effect.revoke(*prefix, *generation);
                    }
                }
                _ => {}
            }
            let (server, op, body) = message_of(&effect);
            let waits = deferred.filter(|_| is_awaited(&effect));
            let link = self.links.get(&server).copied();
            // Without a connection, it is sent when the server is back, or fails when it is lost. The source
            // of a move is refused at once: it can choose another target.
            let is_sent_later = self.catalog.is_suspected(server)
                && !(is_import(&effect) && self.answers_source(waits));
            if link.is_some() || is_sent_later {
                let errand = ServerRequest { server, effect, link, deferred: waits };
                self.ask_server(now, number, errand, op, body);
            } else {
                self.give_up_import(now, &effect);
                self.release(waits, loss_of(&effect));
            }
        }
        debug_assert!(
            deferred.is_none_or(|number| self.awaits_all(number)),
            "INV-16: a reply waits for other requests than those that report to it"
        );
        // Sends the effects of a cancelled move, which contain no request that can fail in the same way.
        if !self.effects.is_empty() {
            self.dispatch(now, None);
        }
    }

    /// Whether this reply waits for as many requests as will report to it. If none will, it has been sent.
    fn awaits_all(&self, number: u64) -> bool {
        let sent = self.errands.values().filter(|errand| errand.deferred == Some(number)).count();
        sent == self.deferred.get(&number).map_or(0, |deferred| deferred.left)
    }

    /// Sends a request over the connection of `errand`, if there is one, and awaits its answer. A request
    /// that no frame holds fails: the server would close the connection, and again after each join.
    pub(crate) fn ask_server(
        &mut self,
        now: Time,
        number: u64,
        errand: ServerRequest,
        op: Op,
        body: Vec<u8>,
    ) {
        let (link, present) = (errand.link, self.links.get(&errand.server).copied());
        assert_eq!(link, present, "INV-16: request {number} goes over another link");
        if errand.link.is_some() && body.len() > CONTROL_ARGS_MAX {
            let text = format!(
                "a request to a memory server has {} bytes, over the limit of {CONTROL_ARGS_MAX}: \
                 the prefix has too many structures, or their names are too long",
                body.len()
            );
            return self.end_errand(now, errand, Status::LimitExceeded, text.as_bytes());
        }
        if let Some(to) = errand.link {
            self.out.push(OutgoingMessage::Ask { to, number, op, body });
        }
        let before = self.errands.insert(number, errand);
        assert!(before.is_none(), "INV-16: request {number} was given twice");
    }

    /// Handles the answer of a memory server.
    pub(super) fn errand_answered(
        &mut self,
        now: Time,
        server: ServerId,
        header: &ReplyHeader,
        args: &[u8],
    ) {
        // Only the server of the request can answer it.
        let theirs = |errand: &ServerRequest| errand.server == server;
        if !self.errands.get(&header.request).is_some_and(theirs) {
            return;
        }
        let errand = self.errands.remove(&header.request).expect("looked up just now");
        self.end_errand(now, errand, header.status, args);
    }

    /// Applies the result of a request to a memory server.
    fn end_errand(&mut self, now: Time, errand: ServerRequest, status: Status, args: &[u8]) {
        let server = errand.server;
        let failure =
            (status != Status::Ok).then(|| (status, String::from_utf8_lossy(args).into_owned()));
        match (&errand.effect, &failure) {
            (Effect::OpenBlock { at, .. }, None) => {
                self.opening.remove(at);
                let _ = self.apply(now, Command::BlockOpened { server, at: *at });
            }
            (Effect::FreeBlock { at, .. }, None) => {
                let _ = self.apply(now, Command::BlockFreed { server, at: *at });
            }
            (Effect::LowerBlock { at, .. }, Some(_)) => {
                let _ = self.apply(now, Command::LowerRefused { server, at: *at });
            }
            (Effect::FlushBlock { at, .. }, refused) => {
                let outcome = match refused {
                    Some((_, why)) => Err(why.clone()),
                    None => FlushBlockReply::decode(args).map(written).map_err(|e| e.to_string()),
                };
                let outcome = match &outcome {
                    Ok(objects) if objects.is_empty() => Err("the server's answer names no object"),
                    Ok(objects) => Ok(&objects[..]),
                    Err(why) => Err(&**why),
                };
                let _ = self.apply(now, Command::BlockFlushed { server, at: *at, outcome });
            }
            (
                &Effect::CopyBlock { number, cut: true, .. },
                Some((Status::NotFound | Status::WrongEpoch | Status::UnknownBlock, _)),
            ) => {
                let _ = self.apply(now, Command::CutLost { server, number });
            }
            (&Effect::CopyBlock { number, name, .. }, refused) => {
                let outcome = match refused {
                    Some((status, why)) => Err((*status == Status::WrongKind, why.clone())),
                    None => match FlushBlockReply::decode(args) {
                        Ok(reply) if reply.objects.is_empty() => {
                            Err((false, "the server's answer names no object".to_owned()))
                        }
                        Ok(reply) => {
                            let sealed = reply.sealed;
                            Ok((written(reply), sealed))
                        }
                        Err(e) => Err((false, e.to_string())),
                    },
                };
                let outcome = match &outcome {
                    Ok((objects, sealed)) => Ok((&objects[..], *sealed)),
                    Err((never, why)) => Err((*never, &**why)),
                };
                let _ = self.apply(now, Command::BlockCopied { server, number, name, outcome });
            }
            (&Effect::CutBlock { number, at, attempt, .. }, refused) => {
                let outcome = match refused {
                    None => CutBlockReply::decode(args)
                        .map(|reply| reply.sealed)
                        .map_err(|e| (StopFault::Gone, e.to_string())),
                    Some((Status::Busy, why)) => Err((StopFault::Arriving, why.clone())),
                    Some((Status::WrongKind, why)) => Err((StopFault::Never, why.clone())),
                    Some((_, why)) => Err((StopFault::Gone, why.clone())),
                };
                let outcome =
                    outcome.as_ref().map(|sealed| *sealed).map_err(|(f, why)| (*f, &**why));
                let stopped = Command::BlockStopped { server, number, at, attempt, outcome };
                let _ = self.apply(now, stopped);
            }
            (&Effect::ThawBlock { number, at, attempt, .. }, refused) => {
                let thawed = refused.is_none().then(|| ThawBlockReply::decode(args).ok()).flatten();
                let stood = thawed.is_some_and(|reply| reply.stood);
                let _ =
                    self.apply(now, Command::BlockThawed { server, number, at, attempt, stood });
            }
            (Effect::Lots { .. }, refused) => {
                let lent = match refused {
                    None => LendBlocksReply::decode(args).map(|reply| reply.lent),
                    Some(_) => Ok(Vec::new()),
                };
                let lent = lent.unwrap_or_default();
                let _ = self.apply(now, Command::Lent { server, lent: &lent });
            }
            (Effect::Release { stay: true, .. }, None) => {
                let _ = self.apply(now, Command::ServerStays { server });
            }
            (&Effect::SweepObjects { number, .. }, refused) => {
                let outcome = refused.as_ref().map_or(Ok(()), |(_, why)| Err(&**why));
                let _ = self.apply(now, Command::Swept { server, number, outcome });
            }
            (&Effect::CommitFlush { number, .. }, refused) => {
                let outcome = refused.as_ref().map_or(Ok(()), |(_, why)| Err(&**why));
                let _ = self.apply(now, Command::FlushCommitted { server, number, outcome });
            }
            _ => {}
        }
        // A block that was to be freed and does not exist counts as freed.
        let failure = failure.filter(|_| prepares(&errand.effect));
        if failure.is_some() {
            self.give_up_import(now, &errand.effect);
        }
        self.release(errand.deferred, failure);
        self.dispatch(now, None);
    }

    /// Whether a block is being opened and its server has not confirmed it.
    pub(crate) fn is_opening(&self, at: BlockAt) -> bool {
        self.opening.contains_key(&at)
    }

    /// Drops an obsolete request to a server. Replies no longer wait for it.
    pub(crate) fn drop_errand(&mut self, number: u64) {
        let errand = self.errands.remove(&number).expect("the caller has checked it");
        self.release(errand.deferred, None);
    }

    /// Fails all requests to a lost server.
    pub(super) fn errands_of_a_lost(&mut self, server: ServerId) {
        let broken: Vec<u64> =
            self.errands.iter().filter(|(_, e)| e.server == server).map(|(n, _)| *n).collect();
        for number in broken {
            let errand = self.errands.remove(&number).expect("listed just now");
            self.release(errand.deferred, loss_of(&errand.effect));
        }
    }

    /// Whether a deferred reply is for the source of a move, which waits for its target.
    fn answers_source(&self, deferred: Option<u64>) -> bool {
        let deferred = deferred.and_then(|number| self.deferred.get(&number));
        deferred.is_some_and(|deferred| deferred.op == Op::BeginMove)
    }

    /// Cancels the moves whose sources wait for a target on this server, which is unreachable: each source
    /// can choose another target. The caller dispatches the effects.
    pub(super) fn refuse_imports(&mut self, now: Time, server: ServerId) {
        let awaited = |errand: &ServerRequest| {
            let ours = errand.server == server && is_import(&errand.effect);
            ours && self.answers_source(errand.deferred)
        };
        let errands = self.errands.iter().filter(|(_, errand)| awaited(errand));
        let mut awaited: Vec<u64> = errands.map(|(number, _)| *number).collect();
        awaited.sort_unstable();
        for number in awaited {
            let errand = self.errands.remove(&number).expect("listed just now");
            self.give_up_import(now, &errand.effect);
            self.release(errand.deferred, loss_of(&errand.effect));
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Completes one of the requests that a deferred reply waits for.
    fn release(&mut self, number: Option<u64>, failure: Option<RefusedRequest>) {
        let Some(number) = number else { return };
        let waiting = self.deferred.get_mut(&number);
        let deferred = waiting.expect("INV-16: a reply waits until all its requests have ended");
        let left = deferred.left;
        assert!(left > 0, "INV-16: reply {number} waits for nothing, and a request of it ends");
        deferred.left -= 1;
        deferred.failure = deferred.failure.take().or(failure);
        if deferred.left > 0 {
            return;
        }
        let deferred = self.deferred.remove(&number).expect("looked up just now");
        match deferred.failure {
            None => self.reply(deferred.to, deferred.request, deferred.body, deferred.rests),
            Some((status, text)) => self.refuse(deferred.to, deferred.request, status, text),
        }
    }
}

/// The objects of a block that a server reports as written.
fn written(reply: FlushBlockReply) -> Vec<Written> {
    let object = |o: FlushedObject| Written { bytes: o.bytes, items: o.items, crc: o.crc };
    reply.objects.into_iter().map(object).collect()
}

/// The message for an effect: the memory server, the operation and its arguments.
pub fn message_of(effect: &Effect) -> (ServerId, Op, Vec<u8>) {
    match effect {
        Effect::OpenBlock {
            server,
            at,
            job,
            prefix,
            structure,
            generation,
            kind,
            start,
            end,
            max_items,
            max_bytes,
            first,
            marks,
            importing,
            tier,
            capacity,
            journal,
        } => {
            let body = OpenBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                job: job.0,
                prefix: prefix.0,
                structure: structure.0,
                generation: generation.0,
                kind: kind.code(),
                start: *start,
                end: *end,
                max_items: *max_items,
                max_bytes: *max_bytes,
                first: *first,
                high_mark: marks.high(),
                low_mark: marks.low(),
                importing: importing.0,
                tier: tier.0,
                journal: journal.iter().map(|at| translate::journal_at(at)).collect(),
                capacity: *capacity,
            };
            (*server, Op::OpenBlock, body.encode())
        }
        Effect::LowerBlock { server, at, tier } => {
            let (block, epoch) = (at.block.0, at.epoch.0);
            let body = LowerBlockRequest { block, epoch, tier: tier.0 };
            (*server, Op::LowerBlock, body.encode())
        }
        Effect::FreeBlock { server, at } => {
            let body = FreeBlockRequest { block: at.block.0, epoch: at.epoch.0 };
            (*server, Op::FreeBlock, body.encode())
        }
        Effect::SetGeneration { server, prefix, generation } => {
            let body = SetGenerationRequest { prefix: prefix.0, generation: generation.0 };
            (*server, Op::SetGeneration, body.encode())
        }
        Effect::QueueAhead { server, at, items, bytes } => {
            let body = QueueAheadRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                items: *items,
                bytes: *bytes,
            };
            (*server, Op::QueueAhead, body.encode())
        }
        Effect::FlushBlock { server, at, start, end, object } => {
            let (block, epoch, object) = (at.block.0, at.epoch.0, object.to_string());
            let (start, end) = (*start, *end);
            let body = FlushBlockRequest { block, epoch, start, end, object, live: 0, cut: false };
            (*server, Op::FlushBlock, body.encode())
        }
        Effect::CopyBlock { server, at, start, end, object, number, cut, .. } => {
            let (block, epoch, object) = (at.block.0, at.epoch.0, object.to_string());
            let (start, end, live, cut) = (*start, *end, *number, *cut);
            let body = FlushBlockRequest { block, epoch, start, end, object, live, cut };
            (*server, Op::FlushBlock, body.encode())
        }
        Effect::EndCopies { server, number } => {
            (*server, Op::EndCopies, EndCopiesRequest { live: *number }.encode())
        }
        Effect::CutBlock { server, at, start, end, number, hold, .. } => {
            let (block, epoch) = (at.block.0, at.epoch.0);
            let (start, end, live, hold_ms) = (*start, *end, *number, hold.as_millis() as u32);
            let body = CutBlockRequest { block, epoch, start, end, live, hold_ms };
            (*server, Op::CutBlock, body.encode())
        }
        Effect::ThawBlock { server, at, number, .. } => {
            let (block, epoch, live) = (at.block.0, at.epoch.0, *number);
            (*server, Op::ThawBlock, ThawBlockRequest { block, epoch, live }.encode())
        }
        Effect::CommitFlush {
            server,
            lineage,
            number,
            directory,
            job_name,
            address,
            structures,
            below,
        } => {
            let body = CommitFlushRequest {
                directory: directory.to_string(),
                lineage: lineage.to_string(),
                number: *number,
                job_name: job_name.to_string(),
                address: address.to_string(),
                structures: structures.iter().map(translate::flushed_structure).collect(),
                below: below.iter().map(|path| path.to_string()).collect(),
            };
            let (op, body) = commit_flush(body, translate::kind_names(structures));
            (*server, op, body)
        }
        Effect::SweepObjects { server, directory, names, .. } => {
            let names = names.iter().map(|name| name.to_string()).collect();
            let body = SweepObjectsRequest { directory: directory.to_string(), names };
            (*server, Op::SweepObjects, body.encode())
        }
        Effect::Lots { server, lots } => {
            (*server, Op::LendBlocks, LendBlocksRequest { lots: lots.to_vec() }.encode())
        }
        Effect::Evacuate { server, at } => (*server, Op::Evacuate, moves::evacuate(*at)),
        Effect::Release { server, stay } => (*server, Op::Release, drain::release(*stay)),
        Effect::BeginImport { server, at, id, start, end } => {
            (*server, Op::BeginImport, moves::begin_import(*at, *id, *start, *end))
        }
        Effect::EndImport { server, at, id, commit } => {
            (*server, Op::EndImport, moves::end_import(*at, *id, *commit))
        }
    }
}

/// The request of a manifest. Only that of a prefix with custom kinds names them.
fn commit_flush(body: CommitFlushRequest, kinds: Vec<KindName>) -> (Op, Vec<u8>) {
    if kinds.is_empty() {
        return (Op::CommitFlush, body.encode());
    }
    let CommitFlushRequest { directory, lineage, number, job_name, address, structures, below } =
        body;
    let body = CommitCustomFlushRequest {
        directory,
        lineage,
        number,
        job_name,
        address,
        structures,
        below,
        kinds,
    };
    (Op::CommitCustomFlush, body.encode())
}

/// Whether the effect prepares a block for use by the caller of a reply.
fn prepares(effect: &Effect) -> bool {
    matches!(effect, Effect::OpenBlock { .. } | Effect::BeginImport { .. })
}

/// Whether the effect prepares a block for a move to it.
fn is_import(effect: &Effect) -> bool {
    match effect {
        Effect::OpenBlock { importing, .. } => *importing != MoveId::NONE,
        other => matches!(other, Effect::BeginImport { .. }),
    }
}

/// Whether a reply waits for this effect.
fn is_awaited(effect: &Effect) -> bool {
    let takes = matches!(effect, Effect::FreeBlock { .. } | Effect::SetGeneration { .. });
    prepares(effect) || takes
}

/// The refusal for a waiting reply when the server of this effect is lost.
pub(super) fn loss_of(effect: &Effect) -> Option<RefusedRequest> {
    match effect {
        // Only an attempt is lost; the source still has all data.
        effect if is_import(effect) => Some((Status::Busy, taker_gone())),
        Effect::OpenBlock { .. } => {
            let text = "the memory server of the new blocks was lost; retry";
            Some((Status::DataLost, text.to_owned()))
        }
        _ => None,
    }
}

fn taker_gone() -> String {
    "the memory server of the move's target was lost or cannot be reached; retry".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_of_built_in_kinds_is_requested_as_before() {
        let body = CommitFlushRequest { number: 7, job_name: "job".into(), ..Default::default() };
        let (op, args) = commit_flush(body.clone(), Vec::new());
        assert_eq!((op, args), (Op::CommitFlush, body.encode()));
        let kinds = vec![KindName { kind: 0x80, name: "log".into() }];
        let (op, args) = commit_flush(body.clone(), kinds.clone());
        assert_eq!((op, args), (Op::CommitCustomFlush, [body.encode(), kinds.encode()].concat()));
    }
}
