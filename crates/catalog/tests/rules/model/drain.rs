//! Draining servers, and cancelled drains.

use super::{Both, cause, outcome};
use honeycomb_catalog::{Actor, Command, DrainState};
use honeycomb_types::ServerId;

impl Both {
    fn server(&self, place: usize) -> Option<ServerId> {
        self.model.servers.keys().nth(place).copied()
    }

    pub fn drain(&mut self, place: usize, cancel: bool) {
        let Some(server) = self.server(place) else { return };
        let address = self.bench.catalog.address_of(server).unwrap();
        let actor = Actor::CLUSTER;
        let result = self.bench.run(Command::DrainServer { actor, address: &address, cancel });
        let expected = match cancel {
            true => {
                self.model.cancel_drain(server);
                Ok(())
            }
            false => self.model.drain(server),
        };
        assert_eq!(cause(&result), outcome(&expected));
    }

    pub fn stays(&mut self, place: usize) {
        let Some(server) = self.server(place) else { return };
        self.bench.run(Command::ServerStays { server }).unwrap();
        self.model.hear(server);
        self.model.stays(server);
    }

    /// Every server that holds nothing is released.
    pub fn check_drains(&self) {
        for (&server, state) in &self.model.drains {
            let left = self.model.out(server).count();
            assert!(*state != DrainState::Draining || left > 0, "{server} is not released");
        }
    }
}
