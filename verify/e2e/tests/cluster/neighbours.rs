//! Expensive requests of one job are refused early by the controller, and other jobs are served (INV-53).

use honeycomb_e2e::Cluster;
use honeycomb_e2e::raw::{ANY_SHARD, Raw};
use honeycomb_types::limits::{BATCH_MAX, PLAN_EDGES_MAX};
use honeycomb_wire::messages::{DagNode, JobTreeRequest, RenewLeasesRequest};
use honeycomb_wire::{Field, Op, Status};

const MIB: u64 = 1 << 20;

fn cluster() -> Cluster {
    Cluster::start(1, 16 * MIB, 64 << 10)
}

/// A plan with two million parents held the controller for 0.7 s, to be refused.
#[test]
fn plan_with_too_many_parents_is_refused_while_it_is_counted() {
    let cluster = cluster();
    let (_client, job) = cluster.job("plans");
    let parents: Vec<String> = (0..1000).map(|n| format!("{n:04}")).collect();
    let nodes = 2000;
    let mut body = Vec::new();
    job.job.0.put(&mut body);
    (nodes as u32).put(&mut body);
    for n in 0..nodes {
        let (name, parents) = (format!("n{n}"), parents.clone());
        if n > PLAN_EDGES_MAX / parents.len() {
            // Nothing beyond the limit is read.
            body.extend_from_slice(&[0xff; 6000]);
        } else {
            DagNode { name, parents, ..DagNode::default() }.put(&mut body);
        }
    }
    let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let reply = raw.ask(Op::CreateHierarchy, &body);
    assert_eq!(reply.status(), Status::LimitExceeded, "{}", reply.message());
    assert!(reply.message().contains("524288"), "{}", reply.message());
    raw.expect_alive();
}

/// The tree of a million prefixes was made before it was refused.
#[test]
fn tree_of_too_many_prefixes_is_refused_and_renewals_go_on() {
    let cluster = cluster();
    let (client, job) = cluster.job("trees");
    for first in (0..BATCH_MAX + 10_000).step_by(10_000) {
        let node = |n| DagNode { name: format!("p{n}"), ..DagNode::default() };
        client.create_hierarchy(job.job, (first..first + 10_000).map(node).collect()).unwrap();
    }
    let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let reply = raw.ask(Op::JobTree, &JobTreeRequest { job: job.job.0 }.encode());
    assert_eq!(reply.status(), Status::LimitExceeded, "{}", reply.message());
    assert!(reply.message().contains("65536"), "{}", reply.message());
    let body = RenewLeasesRequest { job: job.job.0, paths: vec!["p1".into(), String::new()] };
    let reply = raw.ask(Op::RenewLeases, &body.encode());
    assert_eq!(reply.status(), Status::Ok, "{}", reply.message());
}
