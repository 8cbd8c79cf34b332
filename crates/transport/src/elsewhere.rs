//! Requests of a connection at other loops: their maximum number, and the space for their replies.

/// Maximum number of requests of one connection at other loops.
const REQUESTS_MAX: usize = 16;
/// Fraction (1 / this) of a connection's space that is reserved for a reply before any reply's size
/// is known.
const FIRST_FRACTION: usize = 4;
/// The expected size of a reply falls by 1 / this with each smaller reply.
const DECAY: usize = 8;

/// Unanswered requests at other loops. A reply takes memory when it returns, and all replies could
/// wait for a peer that does not read. So each request reserves the space that its reply may need.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Number and reservation of each request.
    under_way: Vec<(u64, usize)>,
    reserved: usize,
    /// Expected bytes of the next reply, after the first one.
    expected: Option<usize>,
}

impl Elsewhere {
    /// Records a request that went to another loop. `most` is the size of its largest possible
    /// reply, if known; `room` is the number of bytes that may wait for the connection.
    pub fn forwarded(&mut self, request: u64, most: Option<usize>, room: usize) {
        let bytes = most.or(self.expected).unwrap_or(room / FIRST_FRACTION);
        self.under_way.push((request, bytes));
        self.reserved += bytes;
    }

    /// The reply to one of them has arrived and has this many bytes.
    pub fn returned(&mut self, request: u64, bytes: usize) {
        let found = self.under_way.iter().position(|(number, _)| *number == request);
        let Some(at) = found else { return };
        let (_, reserved) = self.under_way.swap_remove(at);
        self.reserved -= reserved;
        let before = self.expected.unwrap_or(reserved);
        self.expected = Some(bytes.max(before - before.div_ceil(DECAY)));
    }

    /// Bytes reserved for replies.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Whether no further request may be forwarded, even one with an empty reply.
    pub fn is_full(&self) -> bool {
        self.under_way.len() >= REQUESTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1600 << 10;
    const PAGE: usize = 700 << 10;

    /// Forwards as many requests as a connection may have while this many bytes wait for it.
    fn forward_all(of: &mut Elsewhere, most: Option<usize>, backlog: usize) -> usize {
        let first = of.under_way.len();
        while !of.is_full() && backlog + of.reserved() <= ROOM {
            of.forwarded(of.under_way.len() as u64, most, ROOM);
        }
        of.under_way.len() - first
    }

    #[test]
    fn pages_of_a_peer_that_does_not_read_exceed_its_room_by_no_more_than_one() {
        for backlog in [0, PAGE, ROOM - 1, ROOM] {
            let mut elsewhere = Elsewhere::default();
            let pages = forward_all(&mut elsewhere, Some(PAGE), backlog);
            assert!(backlog + pages * PAGE <= ROOM + PAGE, "{pages} pages behind {backlog} bytes");
        }
    }

    #[test]
    fn few_requests_are_under_way_before_the_size_of_a_reply_is_known() {
        let mut elsewhere = Elsewhere::default();
        assert_eq!(forward_all(&mut elsewhere, None, 0), FIRST_FRACTION + 1);
        for request in 0..=FIRST_FRACTION {
            elsewhere.returned(request as u64, PAGE);
        }
        assert_eq!(elsewhere.reserved(), 0);
        assert_eq!(forward_all(&mut elsewhere, None, 0), ROOM / PAGE + 1);
    }

    #[test]
    fn small_replies_open_the_window_again() {
        let mut elsewhere = Elsewhere::default();
        elsewhere.forwarded(1, Some(PAGE), ROOM);
        elsewhere.returned(1, PAGE);
        for _ in 0..3 * DECAY {
            elsewhere.forwarded(1, None, ROOM);
            elsewhere.returned(1, 40);
        }
        assert_eq!(forward_all(&mut elsewhere, None, 0), REQUESTS_MAX);
    }
}
