//! The rounds of the loop: wait, read, pass frames to the service, send.

use super::*;

/// Runs a loop until its service has finished.
pub fn run<S: Service>(mut net: Net, mut service: S, notes: Receiver<S::Note>) -> io::Result<()> {
    let mut round = Round {
        scratch: vec![0; SCRATCH],
        ahead: Ahead::default(),
        spin: Poller::default(),
        busy: None,
        in_a_row: 0,
        aside: Poller::default(),
        service_next: false,
        stepped: false,
    };
    let mut events = Events::with_capacity(EVENTS);
    // Read once a round, after its wait.
    let mut now = net.clock.now();
    let mut next_sweep = now + SWEEP;
    // Before the first wait: a service may have work at the start.
    let mut deadline = service.on_tick(&mut net, now);
    while !service.finished() {
        net.rounds += 1;
        now = round.wait(&mut net, &mut service, &mut events, now, deadline, next_sweep)?;
        net.round_begins(now);
        net.wake_rested();
        // Connections that their job's turn did not reach come first: other connections of the job have new
        // requests by now, and would be served before them in every round.
        for _ in 0..net.ready.len() {
            let id = net.ready.pop_front().expect("counted");
            round.read(&mut net, &mut service, now, id);
        }
        let mut readable = 0;
        for event in &events {
            match event.token() {
                LISTENER => net.accept_all(),
                WAKER => {}
                Token(raw) => {
                    let id = ConnId(raw as u64);
                    if event.is_writable() && net.conn(id).is_some_and(|c| c.backlog() > 0) {
                        net.mark(id);
                    }
                    if event.is_read_closed()
                        && let Some(conn) = net.conn(id)
                    {
                        conn.hung_up = true;
                    }
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        round.busy = Some(id);
                        round.read(&mut net, &mut service, now, id);
                        readable += 1;
                    }
                }
            }
        }
        if readable > 1 {
            round.busy = None;
        }
        for note in notes.try_iter().take(RING_CAPACITY) {
            service.on_note(&mut net, now, note);
        }
        deadline = service.on_tick(&mut net, now);
        net.flush_dirty(now);
        if now >= next_sweep {
            net.sweep(now);
            // Connections that could not be accepted because no descriptor was free raise no new event.
            net.accept_all();
            next_sweep = now + SWEEP;
        }
        for id in std::mem::take(&mut net.closed) {
            service.on_close(&mut net, now, id);
            net.release(id);
        }
        round.stepped = round.steps(&mut net, &mut service, now);
    }
    net.flush_dirty(now);
    Ok(())
}

/// A poll that watches one connection checks all others once in this many tries.
const BUSY_TRIES: u32 = 4;
/// After this many consecutive rounds with work on one connection only, a round checks all connections.
const BUSY_ROUNDS: u32 = 16;

/// Background work takes as long as the requests that a round has served, and no more than this in a row.
const STEPS_LONGEST: Duration = Duration::from_micros(500);

struct Round {
    scratch: Vec<u8>,
    ahead: Ahead,
    spin: Poller,
    /// The only connection that had data to read in the last round in which any had.
    busy: Option<ConnId>,
    /// Consecutive rounds that found work on this connection without checking the others.
    in_a_row: u32,
    /// Recent costs of yielding the core between two steps of yielding connections.
    aside: Poller,
    /// Whether the service runs the next step, if it has one.
    service_next: bool,
    /// Whether a step ran in this round: the next wait then checks for new events without sleeping.
    stepped: bool,
}

impl Round {
    /// Waits for work, after a short poll if polling has paid off lately. `now` is the beginning of the last
    /// round, which is exact enough to compute the sleep; the returned time is that after the wait.
    ///
    /// While it polls, it reads only from the connection that was busy: one system call, where events and a
    /// read are two. The data that it reads is handled at once.
    fn wait<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        events: &mut Events,
        now: Time,
        deadline: Option<Time>,
        next_sweep: Time,
    ) -> io::Result<Time> {
        let clock = net.clock;
        net.asked_all = false;
        let at_once = !net.ready.is_empty()
            || !net.dirty.is_empty()
            || !net.closed.is_empty()
            || self.stepped;
        if !at_once && net.options.spin > Duration::ZERO && self.spin.worth_it(now) {
            events.clear();
            let began = clock.now();
            let mut tried = began;
            let mut tries = 1;
            if self.in_a_row == BUSY_ROUNDS {
                (tries, self.in_a_row) = (0, 0);
            }
            while tried.since(began) < net.options.spin {
                if self.busy.is_none() || tries % BUSY_TRIES == 0 {
                    poll_once(net, events, Duration::ZERO)?;
                    if !events.is_empty() {
                        self.in_a_row = 0;
                        self.spin.hit();
                        return Ok(clock.now());
                    }
                }
                let Some(after) = self.spin.yielded(tried, || clock.now()) else { break };
                tried = after;
                net.round = after;
                net.sharing.measure(after);
                tries += 1;
                if let Some(id) = self.busy
                    && self.read(net, service, tried, id)
                {
                    self.spin.hit();
                    self.in_a_row += 1;
                    return Ok(tried);
                }
            }
            self.spin.miss();
        }
        let wake = deadline.into_iter().chain(net.resting.until()).fold(next_sweep, Time::min);
        let timeout = if at_once { Duration::ZERO } else { wake.since(now) };
        if !S::TIMED || timeout.is_zero() {
            poll_once(net, events, timeout)?;
            return Ok(clock.now());
        }
        let began = clock.now();
        let whole = poll_once(net, events, timeout)?;
        let after = clock.now();
        if whole {
            net.slept += after.since(began).min(timeout);
        }
        Ok(after)
    }

    /// Reads from a connection, up to its turn, unless its job rests. Returns whether there was any data or
    /// the end of the stream.
    fn read<S: Service>(&mut self, net: &mut Net, service: &mut S, now: Time, id: ConnId) -> bool {
        if net.rests(id) {
            return false;
        }
        let work = net.begin_work(id);
        let read = self.read_turn(net, service, now, id);
        net.end_work(work);
        read
    }

    fn read_turn<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
    ) -> bool {
        let mut taken = 0;
        let rounds = net.rounds;
        loop {
            let Some(conn) = look_up(&mut net.conns, &net.generations, id) else {
                // The connection no longer exists.
                self.busy = None;
                return taken > 0;
            };
            if conn.paused || conn.closing {
                return taken > 0;
            }
            let turn = net.sharing.turn(now, conn.share());
            let served = conn.share().served(rounds, turn, id.0);
            if !conn.is_link() && net.sharing.turn_is_over(now, conn.share(), served) {
                net.ready.push_back(id);
                return true;
            }
            if conn.yields {
                conn.unread = true;
                net.get_in_line(id);
                self.busy = None;
                return taken > 0;
            }
            match self.read_some(net, service, now, id, turn) {
                ReadStep::Read(n) => {
                    taken += n;
                    net.worked(id, n);
                }
                ReadStep::Drained(n) => {
                    net.worked(id, n);
                    return taken + n > 0;
                }
                ReadStep::Ended => {
                    net.drop_conn(id);
                    return true;
                }
                ReadStep::Gone => return true,
            }
        }
    }

    /// One read of a connection, of at most `most` bytes.
    fn read_some<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        most: usize,
    ) -> ReadStep {
        let conn = net.conn(id).expect("checked by the caller");
        let mode = conn.mode;
        if mode != Mode::Frames || conn.wants > SMALL_FRAME && conn.lacks().is_some() {
            net.sharing.moves_large();
        }
        match mode {
            Mode::Fill { left } => self.fill(net, service, now, id, left, most),
            Mode::Skip { left } => self.skip(net, service, now, id, left, most),
            Mode::Frames => self.frames(net, service, now, id, most),
        }
    }

    /// Runs steps of background work, for as long as the round has taken since its wait ended, but at least
    /// one; returns whether there was one. Then the thread yields the core, probably to the
    /// other end of the transfer.
    fn steps<S: Service>(&mut self, net: &mut Net, service: &mut S, now: Time) -> bool {
        let stepped = self.step(net, service, now);
        if stepped {
            let began = net.clock.now();
            let until = began + began.since(now).min(STEPS_LONGEST);
            while net.clock.now() < until && self.step(net, service, now) {}
        }
        if stepped && self.aside.worth_it(now) {
            let before = net.clock.now();
            if self.aside.yielded(before, || net.clock.now()).is_some() {
                self.aside.hit();
            }
        }
        stepped
    }

    fn step<S: Service>(&mut self, net: &mut Net, service: &mut S, now: Time) -> bool {
        self.service_next = !self.service_next;
        match self.service_next {
            true => service.step(net, now) || self.step_line(net, service),
            false => self.step_line(net, service) || service.step(net, now),
        }
    }

    /// A step of the next yielding connection: a piece of its input, or of its output.
    fn step_line<S: Service>(&mut self, net: &mut Net, service: &mut S) -> bool {
        let Some(id) = net.line.pop_front() else { return false };
        let now = net.clock.now();
        net.sharing.measure(now);
        self.step_conn(net, service, now, id);
        true
    }

    fn step_conn<S: Service>(&mut self, net: &mut Net, service: &mut S, now: Time, id: ConnId) {
        let Some(conn) = net.conn(id) else { return };
        conn.in_line = false;
        let mut taken = 0;
        if conn.unread && !conn.paused && !conn.closing {
            match self.read_some(net, service, now, id, PIECE) {
                ReadStep::Read(n) => taken = n.min(PIECE),
                ReadStep::Drained(n) => {
                    taken = n;
                    if let Some(conn) = net.conn(id) {
                        conn.unread = false;
                    }
                }
                ReadStep::Ended => return net.drop_conn(id),
                ReadStep::Gone => return,
            }
        }
        // The read bytes are a part of the step: the output that they cause is sent with the next one.
        let more = taken == PIECE || net.flush_some(id, now, PIECE - taken, true);
        let unread = |conn: &mut Conn| conn.unread && !conn.paused && !conn.closing;
        if more || net.conn(id).is_some_and(unread) {
            net.get_in_line(id);
        }
    }

    fn frames<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        most: usize,
    ) -> ReadStep {
        let conn = net.conn(id).expect("checked by the caller");
        if let Some(lacks) = conn.lacks() {
            return self.gather(net, service, now, id, lacks.min(most));
        }
        let mut kept = conn.take_kept();
        // The retained bytes may hold whole frames: after a pause, or after a hand-over.
        if !kept.is_empty() {
            let used = consume(net, service, now, id, &kept, &mut self.ahead);
            if used > 0 || net.conn(id).is_none_or(|conn| conn.paused) {
                kept.drain(..used);
                let fresh = used > 0;
                return settle(net, service, now, id, &kept, fresh).unwrap_or(ReadStep::Read(used));
            }
        }
        let conn = net.conn(id).expect("nothing was consumed");
        // Bytes of a large payload that are read here are copied once more: read little more than its header.
        let alone = std::mem::take(&mut conn.brings_large);
        let room = if alone { HEAD_ALONE } else { self.scratch.len().min(most) };
        let read = match conn.read(&mut self.scratch[..room], now) {
            Ok(Some(0)) | Err(_) => return ReadStep::Ended,
            Ok(None) => {
                conn.keep(&kept);
                return ReadStep::Drained(0);
            }
            Ok(Some(n)) => n,
        };
        // A short read means that the socket is empty. So no second call is needed, unless the end of the
        // stream follows, which raises no further event.
        let drained = read < room && !conn.hung_up;
        let rest = if kept.is_empty() {
            let used = consume(net, service, now, id, &self.scratch[..read], &mut self.ahead);
            settle(net, service, now, id, &self.scratch[used..read], true)
        } else {
            kept.extend_from_slice(&self.scratch[..read]);
            let used = consume(net, service, now, id, &kept, &mut self.ahead);
            settle(net, service, now, id, &kept[used..], used > 0)
        };
        match rest {
            Some(step) => step,
            None if drained && !net.cut && net.conn(id).is_some_and(|c| c.mode == Mode::Frames) => {
                ReadStep::Drained(read)
            }
            None => ReadStep::Read(read),
        }
    }

    /// Reads from the socket straight to the place that the service chose; after it, at most as many bytes of
    /// a next large request as may be copied.
    fn fill<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        left: usize,
        most: usize,
    ) -> ReadStep {
        let conn = net.conn(id).expect("checked by the caller");
        let Some(place) = service.fill(id) else {
            conn.mode = Mode::Skip { left };
            return ReadStep::Read(0);
        };
        assert_eq!(place.len(), left, "the place of a payload has room for the rest of it");
        let piece = most.min(FILL_PIECE);
        let (place, beyond) = match left > piece {
            true => (&mut place[..piece], &mut [][..]),
            false => (place, &mut self.scratch[..HEAD_ALONE]),
        };
        let room = place.len() + beyond.len();
        let read = match conn.read_two(place, beyond, now) {
            Ok(Some(0)) | Err(_) => return ReadStep::Ended,
            Ok(None) => return ReadStep::Drained(0),
            Ok(Some(n)) => n,
        };
        // As for frames: a short read means that the socket is empty. While the payload is incomplete, the
        // socket is read again all the same: more will arrive soon, and a sleep costs more.
        let drained = read >= left && read < room && !conn.hung_up;
        let (filled, more) = (read.min(left), read.saturating_sub(left));
        service.filled(now, id, filled);
        fill_progress(net, service, now, id, left - filled);
        if more > 0 {
            let used = consume(net, service, now, id, &self.scratch[..more], &mut self.ahead);
            if let Some(step) = settle(net, service, now, id, &self.scratch[used..more], true) {
                return step;
            }
            // The bytes may begin with the header of another large payload: its place is determined next.
            return ReadStep::Read(read);
        }
        if drained { ReadStep::Drained(read) } else { ReadStep::Read(read) }
    }

    /// Reads more of a frame that needs so many more bytes before it can be handled.
    fn gather<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        lacks: usize,
    ) -> ReadStep {
        let conn = net.conn(id).expect("checked by the caller");
        let room = lacks.min(self.scratch.len());
        let read = match conn.read(&mut self.scratch[..room], now) {
            Ok(Some(0)) | Err(_) => return ReadStep::Ended,
            Ok(None) => return ReadStep::Drained(0),
            Ok(Some(n)) => n,
        };
        conn.keep(&self.scratch[..read]);
        conn.arriving.goes_on(now, conn.wants);
        let lacks = conn.lacks().is_some();
        if lacks && !conn.admits(conn.urgent) {
            refuse_unfinished(net, id);
        } else if lacks
            && let Ok(Some((Header::Request(header), size))) =
                Header::decode(&conn.inbuf, conn.greeted)
        {
            let args = &conn.inbuf[size..];
            let args = &args[..args.len().min(header.args_len as usize)];
            if let Err((status, text)) = service.part(id, &header, args) {
                give_up_unfinished(net, id, ReplyHeader::new(status, header.request, 0), &text);
            }
        }
        // A gathered byte is copied once more, into pages that are touched for the first time.
        net.worked(id, read);
        // Bytes after the frame follow it in the buffer, and cause no further event.
        ReadStep::Read(read)
    }

    fn skip<S: Service>(
        &mut self,
        net: &mut Net,
        service: &mut S,
        now: Time,
        id: ConnId,
        left: usize,
        most: usize,
    ) -> ReadStep {
        let conn = net.conn(id).expect("checked by the caller");
        let want = left.min(self.scratch.len()).min(most);
        match conn.read(&mut self.scratch[..want], now) {
            Ok(Some(0)) | Err(_) => ReadStep::Ended,
            Ok(None) => ReadStep::Drained(0),
            Ok(Some(n)) => {
                skipped(net, service, now, id, left - n);
                ReadStep::Read(n)
            }
        }
    }
}

enum ReadStep {
    /// The number of bytes read; there may be more.
    Read(usize),
    /// The number of bytes read; there are no more for now.
    Drained(usize),
    /// The peer has closed or the connection failed.
    Ended,
    /// The connection is not on this loop any more.
    Gone,
}

/// Retains the unread rest of the buffer, and performs a hand-over. `fresh`: the rest begins with a frame.
fn settle<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    rest: &[u8],
    fresh: bool,
) -> Option<ReadStep> {
    let cut = net.cut;
    let Some(conn) = net.conn(id) else { return Some(ReadStep::Gone) };
    if fresh && conn.mode == Mode::Frames {
        conn.arriving.ends();
    }
    if !rest.is_empty() {
        (conn.wants, conn.urgent) = wants(rest, conn.greeted);
        conn.keep(rest);
        if !cut && conn.hand_over.is_none() && !conn.paused {
            conn.arriving.goes_on(now, conn.wants);
        }
        if conn.lacks().is_some() && conn.inbuf.len() > SMALL_FRAME && !conn.admits(conn.urgent) {
            refuse_unfinished(net, id);
        }
    }
    let conn = net.conn(id)?;
    let target = conn.hand_over?;
    let now = net.clock.now();
    net.flush_one(id, now);
    let mut conn = net.remove(id)?;
    let kept = conn.take_kept();
    let (greeted, job, opened) = (conn.greeted, conn.job, conn.opened);
    let stream = conn.stream;
    service.on_detached(id, target, Detached { stream, kept, greeted, job, opened });
    net.release(id);
    Some(ReadStep::Gone)
}

/// The length of the frame that begins with these bytes, and whether it must not wait; 0 if its header is
/// incomplete or malformed.
fn wants(data: &[u8], greeted: bool) -> (usize, bool) {
    match Header::decode(data, greeted) {
        Ok(Some((Header::Request(header), size))) => {
            let args = header.args_len as usize;
            let large = header.payload_len as usize > WHOLE_PAYLOAD_MAX;
            (size + if large { args } else { header.body_len() }, header.op.is_urgent())
        }
        Ok(Some((Header::Reply(header), size))) => (size + header.body_len(), true),
        Ok(None) | Err(_) => (0, false),
    }
}

/// Refuses a request because its job has used its share: all bytes of the request are dropped, also those
/// that arrive later.
fn refuse_unfinished(net: &mut Net, id: ConnId) {
    let Some(conn) = net.conn(id) else { return };
    let Ok(Some((Header::Request(header), _))) = Header::decode(&conn.inbuf, conn.greeted) else {
        conn.take_kept();
        return;
    };
    let busy = ReplyHeader::new(Status::Busy, header.request, BUSY_RETRY_US);
    let text = "the job already uses its share of the node's buffers; retry later";
    give_up_unfinished(net, id, busy, text);
}

/// Refuses a request of which a part has arrived: that part is dropped, and the rest is discarded as it
/// arrives.
fn give_up_unfinished(net: &mut Net, id: ConnId, reply: ReplyHeader, text: &str) {
    let Some(conn) = net.conn(id) else { return };
    let kept = conn.take_kept();
    if let Ok(Some((Header::Request(header), size))) = Header::decode(&kept, conn.greeted) {
        conn.mode = Mode::Skip { left: size + header.body_len() - kept.len() };
    }
    drop(kept);
    let cut = text.floor_char_boundary(MESSAGE_MAX);
    net.reply(id, reply, &text.as_bytes()[..cut], ReplyPayload::Copy(&[]));
}

/// Complete requests of one connection that were inspected together, before the first of them runs: their
/// memory is prefetched while the requests before them run.
#[derive(Default)]
struct Ahead {
    requests: Vec<(RequestHeader, Option<u64>)>,
    /// The number of requests that have run.
    done: usize,
}

impl Ahead {
    /// Inspects the complete requests at the start of `data`.
    fn look<S: Service>(&mut self, service: &S, data: &[u8]) {
        self.clear();
        let mut at = 0;
        while self.requests.len() < AHEAD
            && let Some(head) = data[at..].first_chunk::<REQUEST_HEADER>()
            && let Ok(header) = RequestHeader::decode(head, true)
            && data.len() - at - REQUEST_HEADER >= header.body_len()
        {
            at += REQUEST_HEADER + header.body_len();
            self.requests.push((header, None));
        }
        // A single request has no earlier request whose execution could overlap with its prefetch.
        if self.requests.len() > 1 {
            self.prefetch(service, data);
        }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.done = 0;
    }

    /// Whether all of them have run.
    fn is_empty(&self) -> bool {
        self.done == self.requests.len()
    }

    /// The next one.
    fn next(&mut self) -> Option<&RequestHeader> {
        let (header, _) = self.requests.get(self.done)?;
        self.done += 1;
        Some(header)
    }

    fn prefetch<S: Service>(&mut self, service: &S, data: &[u8]) {
        let mut at = 0;
        for (header, hint) in &mut self.requests {
            at += REQUEST_HEADER;
            *hint = service.prefetch(header, &data[at..at + header.args_len as usize]);
            at += header.body_len();
        }
        for (header, hint) in &self.requests {
            if let Some(hint) = hint {
                service.prefetch_more(header, *hint);
            }
        }
    }
}

/// Handles the frames at the start of `data`; returns the bytes used.
fn consume<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    data: &[u8],
    ahead: &mut Ahead,
) -> usize {
    let mut at = 0;
    ahead.clear();
    let backlog_max = net.backlog_max;
    let (rounds, least_turn) = (net.rounds, net.sharing.least_turn(now));
    (net.cut, net.admitted) = (false, true);
    let mut work = 0;
    while let Some(conn) = look_up(&mut net.conns, &net.generations, id) {
        if conn.closing || conn.hand_over.is_some() {
            break;
        }
        let admitted = conn.admits(false);
        match conn.mode {
            // Never within a payload: the rest of this buffer would be taken for the next bytes of the
            // socket.
            Mode::Frames => {
                // One refusal at a time, so that replies to a peer that reads none do not accumulate.
                let refused = !admitted && conn.backlog() > 0;
                if refused || conn.owed() > backlog_max || conn.elsewhere.is_full() {
                    conn.paused = true;
                    break;
                }
            }
            Mode::Skip { left } => {
                let n = left.min(data.len() - at);
                if n == 0 {
                    break;
                }
                at += n;
                skipped(net, service, now, id, left - n);
                continue;
            }
            Mode::Fill { left } => {
                let n = left.min(data.len() - at);
                if n == 0 {
                    break;
                }
                fill_from(net, service, now, id, left, &data[at..at + n]);
                at += n;
                continue;
            }
        }
        if !conn.is_link() && at < data.len() && work.max(conn.owed()) > 0 {
            let share = conn.share();
            let turn = net.sharing.turn(now, share);
            let served = share.served(rounds, turn, id.0).0 + work;
            let over = net.sharing.turn_is_over(now, share, (served, true));
            if conn.owed() >= least_turn {
                share.press(now);
            }
            if work > 0 && over {
                net.cut = true;
                break;
            }
        }
        let (greeted, requester) = (conn.greeted, conn.requester);
        net.admitted = admitted;
        if ahead.is_empty() && greeted && requester != Requester::Here {
            ahead.look(service, &data[at..]);
        }
        let left = ahead.requests.len() - ahead.done;
        if let Some(header) = ahead.next() {
            let body = &data[at + REQUEST_HEADER..];
            net.more = left > 1;
            let used = request(net, service, now, id, header, body);
            at += REQUEST_HEADER + used.expect("only complete requests are inspected");
            work += net.cost::<S>();
            continue;
        }
        let used = match Header::decode(&data[at..], greeted) {
            Ok(None) => break,
            // The services know only peers that introduced themselves.
            Ok(Some((Header::Request(header), _))) if requester == Requester::Here => {
                let text = "this node opened the connection for its own requests, and serves none";
                net.refuse(id, header.request, Status::BadFrame, text);
                net.close(id);
                return data.len();
            }
            Ok(Some((Header::Request(header), size))) => {
                request(net, service, now, id, &header, &data[at + size..]).map(|n| size + n)
            }
            Ok(Some((Header::Reply(_), _))) if requester == Requester::Peer => {
                // No request was sent: an unknown peer must not make this node buffer a body.
                net.refuse(id, 0, Status::BadFrame, "received a reply, but no request was sent");
                net.close(id);
                return data.len();
            }
            Ok(Some((Header::Reply(header), size))) => {
                reply(net, service, now, id, &header, &data[at + size..]).map(|n| size + n)
            }
            Err(_) if requester == Requester::Here => {
                net.close(id);
                return data.len();
            }
            Err(refusal) => Some(refused(net, id, &refusal, &data[at..])),
        };
        let Some(used) = used else { break };
        at += used;
        work += net.cost::<S>();
    }
    net.more = false;
    // A read that completes no request costs as much as one.
    net.worked(id, work.max(S::WORK));
    at
}

/// Handles a request whose header is complete; returns the bytes of its body that were used, or `None` if it
/// needs more first.
fn request<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    header: &RequestHeader,
    body: &[u8],
) -> Option<usize> {
    let (args_len, payload_len) = (header.args_len as usize, header.payload_len as usize);
    if payload_len > WHOLE_PAYLOAD_MAX
        && let Some(conn) = net.conn(id)
    {
        conn.brings_large = true;
    }
    if payload_len > WHOLE_PAYLOAD_MAX && body.len() < header.body_len() {
        let args = body.get(..args_len)?;
        if let Some(point) = failpoint::reached(false, header.op) {
            net.doomed = Some((id, header.request, point, header.op));
        }
        let begun = service.begin_fill(net, now, id, header, args);
        if let Some(conn) = net.conn(id) {
            conn.mode = match begun {
                PayloadAction::Fill => Mode::Fill { left: payload_len },
                PayloadAction::Skip => Mode::Skip { left: payload_len },
            };
            conn.arriving.ends();
            conn.arriving.goes_on(now, payload_len);
        }
        return Some(args_len);
    }
    let body = body.get(..header.body_len())?;
    let (args, payload) = body.split_at(args_len);
    let last = failpoint::reached(false, header.op);
    net.doomed = last.map(|point| (id, header.request, point, header.op)).or(net.doomed);
    service.on_request(net, now, id, header, args, payload);
    if last == Some(Point::Handled) {
        failpoint::die(Point::Handled, header.op);
    }
    Some(body.len())
}

fn reply<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    header: &ReplyHeader,
    body: &[u8],
) -> Option<usize> {
    let body = body.get(..header.body_len())?;
    if let Some((point, op)) = net.doomed(id, header.request, true) {
        failpoint::die(point, op);
    }
    service.on_reply(net, now, id, header, &body[..header.args_len as usize]);
    Some(body.len())
}

/// Answers a refused header; the body is discarded if its length is credible.
fn refused(net: &mut Net, id: ConnId, refusal: &Refusal, data: &[u8]) -> usize {
    let number = |at: usize, n: usize| {
        let mut bytes = [0; 8];
        if let Some(found) = data.get(at..at + n) {
            bytes[..n].copy_from_slice(found);
        }
        u64::from_le_bytes(bytes)
    };
    net.refuse(id, number(16, 8), refusal.status, refusal.reason);
    let Some(conn) = net.conn(id) else { return data.len() };
    if !refusal.skip {
        conn.closing = true;
        return data.len();
    }
    let left = number(8, 4) as usize + number(12, 4) as usize;
    if left > 0 {
        conn.mode = Mode::Skip { left };
    }
    honeycomb_types::limits::REQUEST_HEADER
}

fn fill_from<S: Service>(
    net: &mut Net,
    service: &mut S,
    now: Time,
    id: ConnId,
    left: usize,
    bytes: &[u8],
) {
    match service.fill(id) {
        Some(place) => {
            place[..bytes.len()].copy_from_slice(bytes);
            service.filled(now, id, bytes.len());
            fill_progress(net, service, now, id, left - bytes.len());
        }
        None => skipped(net, service, now, id, left - bytes.len()),
    }
}

fn fill_progress<S: Service>(net: &mut Net, service: &mut S, now: Time, id: ConnId, left: usize) {
    if let Some(conn) = net.conn(id) {
        conn.mode = if left == 0 { Mode::Frames } else { Mode::Fill { left } };
        if left == 0 {
            conn.arriving.ends();
        }
    }
    if left == 0 {
        service.end_fill(net, now, id);
        if let Some((with, _, Point::Handled, op)) = net.doomed
            && with == id
        {
            failpoint::die(Point::Handled, op);
        }
    }
}

fn skipped<S: Service>(net: &mut Net, service: &mut S, now: Time, id: ConnId, left: usize) {
    if let Some(conn) = net.conn(id) {
        conn.mode = if left == 0 { Mode::Frames } else { Mode::Skip { left } };
        if left == 0 {
            conn.arriving.ends();
        }
    }
    if left == 0 {
        service.end_fill(net, now, id);
    }
}

/// Polls all sockets. Returns false if that was interrupted.
fn poll_once(net: &mut Net, events: &mut Events, timeout: Duration) -> io::Result<bool> {
    match net.poll.poll(events, Some(timeout)) {
        // A process that was stopped gets this error on its return, before the bytes that have arrived
        // meanwhile.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(e) => Err(e),
        Ok(()) => {
            net.polled(events.iter().count());
            Ok(true)
        }
    }
}
