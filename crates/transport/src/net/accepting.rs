//! New connections of a loop.

use super::*;

impl Net {
    /// The next connection of either listener. `accept_all`, which is also called periodically
    /// without an event, retries a connection that could not be accepted.
    fn accept(&self) -> Option<TcpStream> {
        if let Some(door) = &self.door
            && let Ok(stream) = door.accept()
        {
            return Some(TcpStream::from_std(stream));
        }
        let (stream, _) = self.listener.as_ref()?.accept().ok()?;
        // Replies are small and awaited, so waiting to fill a segment would cost a delayed
        // acknowledgement. A peer that is already gone is noticed at the next read.
        let _ = stream.set_nodelay(true);
        Some(stream)
    }

    /// Accepts the connections that wait at the listeners.
    pub(super) fn accept_all(&mut self) {
        if self.acceptance_rests() {
            return;
        }
        let work = self.begin_accepting();
        while let Some(stream) = self.accept() {
            let mut conn = Conn::new(stream, self.clock.now(), &self.budget, &self.strangers);
            if !self.takes_connection(&self.strangers) {
                let header = ReplyHeader::new(Status::LimitExceeded, 0, 0);
                let message = b"the server has reached its limit of 10,000 connections";
                let header = ReplyHeader { args_len: message.len() as u32, ..header };
                let spares = &mut self.spares;
                conn.send(&header.encode(), message, ReplyPayload::Copy(&[]), spares);
                let _ = conn.flush(self.clock.now(), spares, usize::MAX);
                continue;
            }
            let _ = self.insert(conn);
            self.strangers.press(self.round);
        }
        self.end_work(work);
    }
}
