//! A connection that says whatever a test wants, without a client in between.

use super::{Cluster, PATIENCE, server_options};
use honeycomb_controller::{Controller, ControllerOptions};
use honeycomb_env::Entropy;
use honeycomb_server::{MemoryServer, ServerOptions};
use honeycomb_structures::Registry;
use honeycomb_types::limits::{PROTOCOL_MAJOR, REPLY_HEADER};
use honeycomb_types::{BlockAt, LaneId, PrefixId, Sequence};
use honeycomb_wire::messages::{HelloRequest, PartitionMap, PresentGrantRequest};
use honeycomb_wire::{Field, Op, ReplyHeader, RequestHeader, RootKey, Status};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The shard that the server chooses.
pub const ANY_SHARD: u8 = u8::MAX;
/// Nothing here waits longer than this for a byte.
const SILENCE: Duration = Duration::from_secs(10);

/// A reply with its parts.
#[derive(Clone, Debug)]
pub struct Reply {
    pub header: ReplyHeader,
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn status(&self) -> Status {
        self.header.status
    }

    /// The message of a refusal.
    pub fn message(&self) -> String {
        String::from_utf8_lossy(&self.args).into_owned()
    }
}

/// A protocol connection. Every read and write of it ends after ten seconds.
pub struct Raw {
    stream: TcpStream,
    next: u64,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect_timeout(&address, SILENCE).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.set_write_timeout(Some(SILENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw { stream, next: 1 }
    }

    /// A connection whose handshake is done.
    pub fn greeted(address: SocketAddr, token: &[u8], shard: u8) -> Raw {
        let mut raw = Raw::connect(address);
        let reply = raw.hello(token, PrefixId(0), shard);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        raw
    }

    pub fn hello(&mut self, token: &[u8], task: PrefixId, shard: u8) -> Reply {
        let args = hello_args(token, task, shard);
        self.request(RequestHeader::new(Op::Hello), &args, &[])
    }

    /// Presents a grant and returns its number.
    pub fn present(&mut self, grant: &[u8]) -> u32 {
        let reply = self.try_present(grant);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
        reply.header.value as u32
    }

    pub fn try_present(&mut self, grant: &[u8]) -> Reply {
        let body = PresentGrantRequest { grant: grant.to_vec() };
        self.ask(Op::PresentGrant, &body.encode())
    }

    /// A request of which only the operation matters.
    pub fn ask(&mut self, op: Op, args: &[u8]) -> Reply {
        self.request(RequestHeader::new(op), args, &[])
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends to a peer that may have closed already.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// No more will be sent; replies can still be read.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Sends a request whole, with the lengths that it has, and reads one reply, which must be
    /// its own.
    pub fn request(&mut self, mut header: RequestHeader, args: &[u8], payload: &[u8]) -> Reply {
        header.request = self.number();
        self.send(&frame(header, args, payload));
        let reply = self.reply();
        assert_eq!(reply.header.request, header.request, "the reply to another request");
        reply
    }

    /// A request number that this connection has not used.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply within ten seconds")
    }

    pub fn try_reply(&mut self) -> io::Result<Reply> {
        let mut head = [0; REPLY_HEADER];
        self.stream.read_exact(&mut head)?;
        let header = ReplyHeader::decode(&head).unwrap();
        let mut args = vec![0; header.args_len as usize];
        self.stream.read_exact(&mut args)?;
        let mut payload = vec![0; header.payload_len as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Reply { header, args, payload })
    }

    /// The peer closes, and says nothing more before it does.
    pub fn expect_closed(&mut self) {
        let mut rest = [0; 1];
        match self.stream.read(&mut rest) {
            Ok(0) => {}
            Ok(_) => panic!("a byte where the connection should end"),
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::ConnectionReset, "not closed: {e}"),
        }
    }

    /// The peer still serves this connection.
    pub fn expect_alive(&mut self) {
        let reply = self.ask(Op::Ping, &[]);
        assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
    }

    /// Reads and throws away until the peer closes.
    pub fn drain(&mut self) {
        let mut scratch = [0; 4096];
        loop {
            match self.stream.read(&mut scratch) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) => {
                    let late =
                        matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                    assert!(!late, "the peer did not close within ten seconds");
                    return;
                }
            }
        }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

pub fn hello_args(token: &[u8], task: PrefixId, shard: u8) -> Vec<u8> {
    let mut entropy = Entropy::system();
    let session = (entropy.next_u64() as u128) << 64 | entropy.next_u64() as u128 | 1;
    HelloRequest {
        major: PROTOCOL_MAJOR,
        minor: 0,
        features: 0,
        session,
        token: token.to_vec(),
        task_prefix: task.0,
        shard,
        window: 0,
    }
    .encode()
}

/// The bytes of a request, with the lengths that its parts have.
pub fn frame(mut header: RequestHeader, args: &[u8], payload: &[u8]) -> Vec<u8> {
    header.args_len = args.len() as u32;
    header.payload_len = payload.len() as u32;
    [&header.encode()[..], args, payload].concat()
}

/// The header of a data request; a mutation gets the first place of this lane.
pub fn data_header(op: Op, at: BlockAt, grant: u32, lane: u32) -> RequestHeader {
    let mut header = RequestHeader { at, grant, ..RequestHeader::new(op) };
    if op.info().lane {
        (header.lane, header.sequence, header.ack_lag) = (LaneId(lane), Sequence(1), 1);
    }
    header
}

/// The first block of a structure.
pub fn first_block(map: &PartitionMap) -> BlockAt {
    let entry = &map.entries[0];
    entry.at()
}

/// A cluster of one memory server of two shards, and the key by which a test can issue any token
/// and any grant.
pub fn keyed_cluster(memory: u64, block_size: u64) -> (Cluster, RootKey) {
    keyed_cluster_with(memory, block_size, Arc::default())
}

/// The same, with a server that serves these kinds of structure.
pub fn keyed_cluster_with(
    memory: u64,
    block_size: u64,
    kinds: Arc<Registry>,
) -> (Cluster, RootKey) {
    let root = [0x5A; 32];
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let spin = Duration::ZERO;
    let options = ControllerOptions {
        listen,
        root_key: Some(root),
        spin,
        data_dir: None,
        unix_dir: None,
        marks: honeycomb_types::Marks::default(),
        lease_ms: 1000,
        policy: Default::default(),
        scale: Default::default(),
        server_loss_ms: honeycomb_types::limits::SERVER_LOSS_DEFAULT_MS,
        shards: 1,
    };
    let controller = Controller::start(&options).unwrap();
    let options = server_options(controller.address(), controller.token(), memory, block_size);
    let options = ServerOptions { listen, spin, kinds, ..options };
    let servers = vec![MemoryServer::start(&options, PATIENCE).unwrap()];
    (Cluster { servers, controller }, RootKey(root))
}
