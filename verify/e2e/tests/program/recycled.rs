//! INV-04 in a process: memory that one job gave up shows none of its bytes to another, whichever way it
//! takes: through the system, the reserve of touched memory, or blocks that were divided.

use honeycomb_client::{Ask, Client, ClientOptions, CustomOptions};
use honeycomb_e2e::noise;
use honeycomb_e2e::process::{Node, unhex};
use honeycomb_wire::messages::PrefixOptions;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const JOBS: u8 = 10;

struct Cluster {
    controller: Node,
    _server: Node,
    /// Blocks of each job.
    blocks_each: u32,
}

impl Cluster {
    /// A cluster of 1 GiB with blocks of this size, and these options of the reserve.
    fn start(block_size: &str, blocks_each: u32, reserve: &[&str]) -> Cluster {
        let controller = Node::start(&["controller", "--listen", "127.0.0.1:0"]);
        let (address, token) = (controller.text("address"), controller.text("token"));
        let words = ["server", "--controller", &address, "--token", &token, "--shards", "1"];
        let sizes = ["--memory", "1GiB", "--block-size", block_size, "--page-reserve-idle", "600"];
        let words = [&words[..], &sizes, reserve].concat();
        let _server = Node::start_of("raw-blocks", &words);
        Cluster { controller, _server, blocks_each }
    }

    fn client(&self, token: &[u8]) -> Client {
        Client::new(ClientOptions::new(self.controller.text("address"), token))
    }

    fn admin(&self) -> Client {
        self.client(&unhex(&self.controller.text("token")))
    }

    /// A job fills its blocks with a byte; returns how many bytes of other owners it met.
    fn fill(&self, mark: u8) -> u64 {
        let admin = self.admin();
        let job = admin.register_job(&format!("raw-{mark}"), 600_000, 0).unwrap();
        let client = self.client(&job.token);
        client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
        let options = CustomOptions { blocks: self.blocks_each, ..CustomOptions::default() };
        let raw = client.create_custom(job.job, "t:raw", "raw", options).unwrap();
        let filled = raw.call_each("fill", Ask { args: &[mark], ..Ask::default() }).unwrap();
        assert_eq!(filled.len(), self.blocks_each as usize);
        // Its own bytes are there: a second look counts all of them.
        let again = raw.call_each("fill", Ask { args: &[mark], ..Ask::default() }).unwrap();
        let counted = |block: &honeycomb_client::Answered| block.value > 4 << 20;
        assert!(again.iter().all(counted), "a block does not show the bytes of its own job");
        admin.deregister_job(job.job).unwrap();
        filled.iter().map(|block| block.value).sum()
    }

    /// Fills and removes a store, whose blocks divide and give up memory, until `ends` is set.
    fn divide(&self, ends: &AtomicBool) {
        let admin = self.admin();
        let job = admin.register_job("divides", 600_000, 0).unwrap();
        let client = self.client(&job.token);
        client.create_prefix(job.job, "t", &[], PrefixOptions::default()).unwrap();
        let value = noise(3, 4000);
        while !ends.load(Relaxed) {
            let store = client.create_kv(job.job, "t:store", 1, false).unwrap();
            for batch in 0..100u64 {
                let keys: Vec<[u8; 8]> =
                    (0..100).map(|n| (batch * 100 + n).to_be_bytes()).collect();
                let entries: Vec<(&[u8], &[u8])> =
                    keys.iter().map(|key| (&key[..], &value[..])).collect();
                for result in store.multi_put(&entries) {
                    result.unwrap();
                }
            }
            client.remove_structure(job.job, "t:store").unwrap();
        }
        admin.deregister_job(job.job).unwrap();
    }
}

#[test]
fn blocks_of_small_pages_show_no_byte_of_another_job() {
    blocks_show_no_byte_of_another("4MiB", 100, &[]);
}

/// The default reserve is small and takes what divided blocks give up.
#[test]
fn blocks_of_a_job_show_no_byte_of_another_when_memory_is_recycled() {
    blocks_show_no_byte_of_another("16MiB", 50, &[]);
}

#[test]
fn blocks_of_a_job_show_no_byte_of_another_with_a_full_reserve() {
    blocks_show_no_byte_of_another("16MiB", 50, &["--page-reserve", "128MiB"]);
}

fn blocks_show_no_byte_of_another(block_size: &str, blocks_each: u32, reserve: &[&str]) {
    let cluster = Cluster::start(block_size, blocks_each, reserve);
    let ends = AtomicBool::new(false);
    let met: Vec<u64> = std::thread::scope(|scope| {
        let divides = scope.spawn(|| cluster.divide(&ends));
        let filled =
            std::panic::catch_unwind(|| (1..=JOBS).map(|mark| cluster.fill(mark)).collect());
        ends.store(true, Relaxed);
        divides.join().unwrap();
        filled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert_eq!(met, vec![0; JOBS.into()], "bytes of others in {blocks_each} blocks of each job");
}
