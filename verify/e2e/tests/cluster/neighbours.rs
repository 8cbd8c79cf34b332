//! Expensive requests of one job are refused early by the controller, and other jobs are served (INV-53).

use honeycomb_client::JobTicket;
use honeycomb_e2e::Cluster;
use honeycomb_e2e::raw::{ANY_SHARD, Raw, Reply, frame};
use honeycomb_types::limits::{BATCH_MAX, CONTROL_ARGS_MAX, PLAN_EDGES_MAX};
use honeycomb_wire::messages::{
    CreateHierarchyRequest, DagNode, JobTreeRequest, RenewLeasesRequest,
};
use honeycomb_wire::{Field, Op, RequestHeader, Status};
use std::time::Duration;

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

/// The first bytes of a plan with many nodes, none of which has parents.
fn beginning_of_a_plan(job: u64, bytes: usize) -> Vec<u8> {
    let mut body = Vec::new();
    job.put(&mut body);
    (BATCH_MAX as u32).put(&mut body);
    while body.len() < bytes {
        DagNode { name: format!("n{}", body.len()), ..DagNode::default() }.put(&mut body);
    }
    body.truncate(bytes);
    body
}

/// A connection that has sent so many bytes of a plan of the greatest length.
fn unfinished_plan(cluster: &Cluster, job: &JobTicket, bytes: usize) -> Raw {
    let mut raw = Raw::greeted(cluster.controller.address(), &job.token, ANY_SHARD);
    let args_len = CONTROL_ARGS_MAX as u32;
    let header = RequestHeader { args_len, ..RequestHeader::new(Op::CreateHierarchy) };
    raw.send(&header.encode());
    raw.send(&beginning_of_a_plan(job.job.0, bytes));
    raw
}

/// A plan of which a part had arrived was refused because its job used up its share of the controller's
/// buffers. The count of its nodes stayed; the next plan over that connection had fewer bytes at first than
/// were counted, and an assert ended the controller.
#[test]
fn plan_after_one_that_was_refused_half_way_is_counted_anew() {
    let cluster = cluster();
    let (client, job) = cluster.job("plans");
    let beginning = CONTROL_ARGS_MAX / 16;
    let mut plan = unfinished_plan(&cluster, &job, beginning);
    let (step, mut sent, mut others) = (3 * beginning / 2, beginning, Vec::new());
    plan.stream().set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let refusal = loop {
        // Other connections of the job fill its share, until one of them is refused: the plan has less room
        // than that one needed, and is refused when it continues, unless one was closed meanwhile.
        for n in 0.. {
            assert!(n < 512, "the buffers of a controller hold all of this");
            let other = unfinished_plan(&cluster, &job, beginning);
            // The controller has read it when it answers another connection.
            client.tree(job.job).unwrap();
            other.stream().set_nonblocking(true).unwrap();
            if other.stream().peek(&mut [0]).is_ok() {
                break;
            }
            others.push(other);
        }
        assert!(sent + step < CONTROL_ARGS_MAX, "the plan is not refused");
        plan.send(&vec![0; step]);
        sent += step;
        if let Ok(reply) = plan.try_reply() {
            break reply;
        }
    };
    assert_eq!(refusal.status(), Status::Busy, "{}", refusal.message());
    drop(others);
    plan.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    plan.send(&vec![0; CONTROL_ARGS_MAX - sent]);
    // In parts, and complete.
    let nodes = (0..200).map(|n| DagNode { name: format!("n{n}"), ..DagNode::default() });
    let body = CreateHierarchyRequest { job: job.job.0, nodes: nodes.collect() }.encode();
    let mut again = Vec::new();
    while again.is_empty() || Status::Busy == Reply::status(again.last().unwrap()) {
        let header = RequestHeader::new(Op::CreateHierarchy);
        let frame = frame(header, &body, &[]);
        let (first, rest) = frame.split_at(frame.len() / 2);
        let (second, third) = rest.split_at(rest.len() / 2);
        for part in [first, second, third] {
            plan.send(part);
            client.tree(job.job).unwrap();
        }
        again.push(plan.reply());
    }
    let last = again.last().unwrap();
    assert_eq!(last.status(), Status::Ok, "{}", last.message());
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
