//! A core's view of the cluster: the number of its server, the keys, and the clock. Handshakes need them.

use crate::notes::Peer;
use honeycomb_types::limits::{RESULTS_WINDOW, RESULTS_WINDOW_MAX};
use honeycomb_types::{ServerId, ShardIx, Time};
use honeycomb_wire::messages::HelloReply;
use honeycomb_wire::{Grant, GrantKey, Greeted, Status, TokenKey};

struct Keys {
    token: TokenKey,
    grant: GrantKey,
}

/// The membership of the server in its cluster.
#[derive(Default)]
pub(super) struct Membership {
    server: ServerId,
    /// `None` until the server has joined.
    keys: Option<Keys>,
    clock_offset_ms: i64,
}

impl Membership {
    /// The server has this number at a controller shard.
    pub fn joins(&mut self, server: ServerId, token: TokenKey, grant: GrantKey) {
        if self.keys.is_none() || server.controller() == 0 {
            self.server = server;
        }
        self.keys = Some(Keys { token, grant });
    }

    /// Sets the difference of the controller's clock to the local one.
    pub fn set_clock_offset(&mut self, offset_ms: i64) {
        self.clock_offset_ms = offset_ms;
    }

    /// The content of a grant, if the cluster has made it.
    pub fn verify(&self, grant: &[u8]) -> Result<Grant, String> {
        let keys = self.keys.as_ref().expect("handshakes need the keys");
        keys.grant.verify(grant).map_err(|e| e.to_string())
    }

    /// Checks a handshake at a core of so many: the caller, the reply, and the core that gets the connection.
    pub fn greet(
        &self,
        now: Time,
        own: ShardIx,
        shards: u8,
        args: &[u8],
    ) -> Result<(Peer, HelloReply, ShardIx), (Status, String)> {
        let Some(keys) = &self.keys else {
            return Err((
                Status::Busy,
                "the server has not joined its cluster yet; retry later".into(),
            ));
        };
        let clock_ms = now.as_millis().saturating_add_signed(self.clock_offset_ms);
        let greeted = Greeted::check(args, &keys.token, clock_ms)?;
        let shard = match greeted.hello.shard {
            u8::MAX => own,
            n if n < shards => ShardIx(n),
            n => {
                let text =
                    format!("this server has no shard {n}; the number of its shards is {shards}");
                return Err((Status::InvalidArgument, text));
            }
        };
        let window = match greeted.hello.window {
            0 => RESULTS_WINDOW,
            n => n.min(RESULTS_WINDOW_MAX),
        };
        let server = self.server.0;
        let reply =
            HelloReply { server, shard: shard.0, shards, window, ..greeted.reply(clock_ms) };
        let peer = Peer {
            session: greeted.session,
            window,
            job: greeted.scope.job,
            task: greeted.task,
            cluster: greeted.scope.is_whole_cluster(),
            grants: Vec::new(),
            listed: 0,
        };
        Ok((peer, reply, shard))
    }
}
