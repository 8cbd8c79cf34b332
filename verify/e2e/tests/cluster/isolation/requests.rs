//! A well-formed request of every operation, about the victim.

use super::*;

/// The body of a request.
pub struct Request {
    pub args: Vec<u8>,
    pub payload: Vec<u8>,
}

/// Well-formed, about the victim.
pub fn request_of(op: Op, victim: &Victim) -> Request {
    let (job, path) = (victim.job.job.0, "own".to_owned());
    let options = PrefixOptions::default();
    let at = victim.file.at;
    let body = |args: Vec<u8>| Request { args, payload: Vec::new() };
    let write = |args: &[u8]| Request { args: args.to_vec(), payload: b"harm".to_vec() };
    match op {
        Op::Hello => body(hello_args(&victim.job.token, PrefixId(0), ANY_SHARD)),
        Op::Ping => body(PingRequest {}.encode()),
        Op::PresentGrant => {
            let mut grant = victim.kv.grant.clone();
            *grant.last_mut().unwrap() ^= 1;
            body(PresentGrantRequest { grant }.encode())
        }
        Op::MoveRegion => {
            let (start, end, values) = (0, u64::MAX, 0);
            let checksum = checksum(b"harm");
            let part = MoveRegionRequest { move_id: MOVE, start, end, values, checksum };
            write(&part.encode())
        }
        Op::MoveValue => {
            let checksum = checksum(b"harm");
            write(&MoveValueRequest { move_id: MOVE, value: 1, checksum }.encode())
        }
        Op::MovePatch => {
            let (start, end, length, checksum) = (0, u64::MAX, 4, checksum(b"harm"));
            let part = MovePatchRequest { move_id: MOVE, start, end, length, checksum };
            write(&part.encode())
        }
        Op::MoveState => {
            let (offset, length, checksum) = (0, 4, checksum(b"harm"));
            write(&MoveStateRequest { move_id: MOVE, offset, length, checksum }.encode())
        }
        Op::MoveDrops => body(MoveDropsRequest { move_id: MOVE, values: vec![0, 1] }.encode()),
        Op::MoveLanes => write(&MoveLanesRequest { move_id: MOVE }.encode()),
        Op::MoveDone => body(MoveDoneRequest { move_id: MOVE, entries: 0, bytes: 0 }.encode()),
        Op::ExtentAdopt | Op::ExtentDrop => {
            let BlockAt { block, epoch } = victim.extents.at;
            let (block, epoch, structure) = (block.0, epoch.0, victim.kv.id.0);
            // Of another owner than the victim's put.
            let (owner, extents) = (1, vec![ExtentName { block, epoch, id: 1 }]);
            body(match op {
                Op::ExtentAdopt => ExtentAdoptRequest { structure, owner, extents }.encode(),
                _ => ExtentDropRequest { structure, owner, extents }.encode(),
            })
        }
        Op::RegisterJob => {
            let name = "intruder".into();
            body(RegisterJobRequest { name, ..RegisterJobRequest::default() }.encode())
        }
        Op::DeregisterJob => body(DeregisterJobRequest { job }.encode()),
        Op::ListJobs => body(ListJobsRequest {}.encode()),
        Op::ListKinds => body(ListKindsRequest {}.encode()),
        Op::JobTree => body(JobTreeRequest { job }.encode()),
        Op::FindJob => body(FindJobRequest { name: "victim".into() }.encode()),
        Op::JobWeights => body(JobWeightsRequest { job }.encode()),
        Op::JobCost => body(JobCostRequest { job }.encode()),
        Op::SetQuota => {
            let (level, name, max_blocks) = (2, path, 1000);
            let (soft_blocks, weight) = (u64::MAX, 0);
            body(SetQuotaRequest { job, level, name, max_blocks, soft_blocks, weight }.encode())
        }
        Op::GetQuota => body(GetQuotaRequest { job, level: 2, name: path }.encode()),
        Op::CreatePrefix => {
            let path = "own/new".into();
            body(CreatePrefixRequest { job, path, parents: Vec::new(), options }.encode())
        }
        Op::CreateHierarchy => {
            let (name, parents, readers) = ("new".into(), vec![path.clone()], vec![path]);
            let node = DagNode { name, parents, options, readers };
            body(CreateHierarchyRequest { job, nodes: vec![node] }.encode())
        }
        Op::RemovePrefix => body(RemovePrefixRequest { job, path }.encode()),
        Op::RenewLeases => body(RenewLeasesRequest { job, paths: vec![path] }.encode()),
        Op::FlushPrefix => body(
            FlushPrefixRequest { job, path, place: "out".into(), below: vec![], barrier: false }
                .encode(),
        ),
        Op::FlushInfo => body(FlushInfoRequest { job, flush: 1 }.encode()),
        Op::LocateFlush => {
            body(LocateFlushRequest { job, place: "out".into(), path: "".into() }.encode())
        }
        Op::CancelFlush => body(CancelFlushRequest { job, flush: 1 }.encode()),
        Op::PublishPrefix => body(PublishPrefixRequest { job, path }.encode()),
        Op::EndCopies => body(EndCopiesRequest { live: 1 }.encode()),
        Op::CutBlock => body(
            CutBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                start: 0,
                end: u64::MAX,
                live: 1,
                hold_ms: 1,
            }
            .encode(),
        ),
        Op::ThawBlock => {
            body(ThawBlockRequest { block: at.block.0, epoch: at.epoch.0, live: 1 }.encode())
        }
        Op::LeaseInfo => body(LeaseInfoRequest { job, path }.encode()),
        Op::SetPermissions => {
            body(SetPermissionsRequest { job, path, owner_verbs: 3, job_verbs: 3 }.encode())
        }
        Op::DeclareReaders => {
            let (readers, replace) = (vec!["peer".into()], false);
            body(DeclareReadersRequest { job, path, readers, replace }.encode())
        }
        Op::CommitTask => body(CommitTaskRequest { job, path }.encode()),
        Op::CreateStructure => {
            let kind = Kind::Kv.code();
            let name = "new".into();
            let message = CreateStructureRequest {
                job,
                path,
                name,
                kind,
                blocks: 1,
                max_items: 0,
                max_bytes: 0,
                open_existing: false,
            };
            body(message.encode())
        }
        Op::OpenStructure => body(OpenStructureRequest { job, path, name: "kv".into() }.encode()),
        Op::ReopenStructure => {
            body(ReopenStructureRequest { job, structure: victim.kv.id.0 }.encode())
        }
        Op::RemoveStructure => {
            body(RemoveStructureRequest { job, path, name: "kv".into() }.encode())
        }
        Op::ExtentBlocks => {
            let (structure, full) = (victim.kv.id.0, Vec::new());
            body(ExtentBlocksRequest { job, structure, bytes: 1, full, value: 0 }.encode())
        }
        Op::BeginAppend => {
            let structure = victim.file.id.0;
            body(BeginAppendRequest { job, structure, bytes: 1 }.encode())
        }
        Op::CommitAppend => {
            // A block that serves already: its commit changes nothing.
            let (structure, at) = (victim.file.id.0, victim.file.at);
            let (block, epoch) = (at.block.0, at.epoch.0);
            body(CommitAppendRequest { job, structure, block, epoch }.encode())
        }
        Op::DropAppend => {
            let (structure, at) = (victim.file.id.0, victim.file.at);
            let (block, epoch) = (at.block.0, at.epoch.0);
            body(DropAppendRequest { job, structure, block, epoch }.encode())
        }
        Op::LocateServer => body(LocateServerRequest { server: 1 }.encode()),
        Op::ClusterStatus => body(ClusterStatusRequest {}.encode()),
        Op::JoinServer => body(
            JoinServerRequest {
                address: "127.0.0.1:1".into(),
                incarnation: 7,
                shards: 1,
                blocks_per_shard: 1,
                tiers: Vec::new(),
                block_size: BLOCK,
                flush_root: "/flush".into(),
                kinds: Vec::new(),
                server: 0,
                term: 0,
                lent: Vec::new(),
            }
            .encode(),
        ),
        Op::Report => body(
            ReportRequest {
                bytes_resident: 0,
                connections: 0,
                requests: 0,
                forwarded: 0,
                bytes_owed: 0,
                cpu_permille: 0,
                tiers: Vec::new(),
                alarms: Vec::new(),
                usage: Vec::new(),
                active: vec![ActivePrefix { job, prefix: victim.own.0, ago_ms: 0 }],
            }
            .encode(),
        ),
        Op::GrowStructure => body(
            GrowStructureRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
            }
            .encode(),
        ),
        Op::GrowBlock => body(
            GrowBlockRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                bytes: u64::MAX,
            }
            .encode(),
        ),
        Op::SealBlock => body(
            SealBlockRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                length: 1,
                bytes: 1,
                last: true,
            }
            .encode(),
        ),
        Op::QueueTaken => body(
            QueueTakenRequest {
                structure: victim.queue.id.0,
                block: victim.queue.at.block.0,
                epoch: victim.queue.at.epoch.0,
                items: 1,
                bytes: ITEM.len() as u64,
            }
            .encode(),
        ),
        Op::RetireBlock => body(
            RetireBlockRequest {
                structure: victim.queue.id.0,
                block: victim.queue.at.block.0,
                epoch: victim.queue.at.epoch.0,
            }
            .encode(),
        ),
        Op::ReturnBlock => body(
            ReturnBlockRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                successor: victim.kv.at.block.0,
                successor_epoch: victim.kv.at.epoch.0,
            }
            .encode(),
        ),
        Op::FlushBlock => body(
            FlushBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0,
                start: 0,
                end: u64::MAX,
                object: "victim/out/0.part".into(),
                live: 0,
                cut: false,
            }
            .encode(),
        ),
        Op::SweepObjects => body(
            SweepObjectsRequest { directory: "victim/out".into(), names: vec!["0.part".into()] }
                .encode(),
        ),
        Op::CommitFlush => body(
            CommitFlushRequest {
                directory: "victim/out".into(),
                lineage: "x".into(),
                number: 1,
                job_name: "victim".into(),
                address: path,
                structures: Vec::new(),
                below: Vec::new(),
            }
            .encode(),
        ),
        Op::CommitCustomFlush => body(
            CommitCustomFlushRequest {
                directory: "victim/out".into(),
                lineage: "x".into(),
                number: 1,
                job_name: "victim".into(),
                address: path,
                structures: Vec::new(),
                below: Vec::new(),
                kinds: Vec::new(),
            }
            .encode(),
        ),
        Op::Inventory => body(
            InventoryRequest {
                blocks: vec![HeldBlock {
                    block: victim.queue.at.block.0,
                    epoch: victim.queue.at.epoch.0,
                    structure: victim.queue.id.0,
                    ..HeldBlock::default()
                }],
                last: true,
            }
            .encode(),
        ),
        Op::BeginMove => body(
            BeginMoveRequest {
                structure: victim.kv.id.0,
                block: victim.kv.at.block.0,
                epoch: victim.kv.at.epoch.0,
                start: 1 << 63,
                way: 0,
            }
            .encode(),
        ),
        Op::CommitMove => body(
            CommitMoveRequest {
                structure: victim.kv.id.0,
                block: victim.kv.at.block.0,
                epoch: victim.kv.at.epoch.0,
                move_id: MOVE,
                target: victim.kv.at.block.0,
                target_epoch: victim.kv.at.epoch.0,
                bytes: 0,
            }
            .encode(),
        ),
        Op::CancelMove => body(
            CancelMoveRequest {
                structure: victim.kv.id.0,
                block: victim.kv.at.block.0,
                epoch: victim.kv.at.epoch.0,
                move_id: MOVE,
            }
            .encode(),
        ),
        Op::BeginImport => body(
            BeginImportRequest {
                block: victim.kv.at.block.0,
                epoch: victim.kv.at.epoch.0,
                move_id: MOVE,
                start: 0,
                end: u64::MAX,
            }
            .encode(),
        ),
        Op::LeaveServer => body(LeaveServerRequest {}.encode()),
        Op::Evacuate => {
            let (block, epoch) = (victim.kv.at.block.0, victim.kv.at.epoch.0);
            body(EvacuateRequest { block, epoch }.encode())
        }
        Op::Release => body(ReleaseRequest { stay: false }.encode()),
        Op::DrainServer => {
            // Not the address of `JoinServer`, whose server may be a member for some time.
            let address = "127.0.0.1:2".into();
            body(DrainServerRequest { address, cancel: true }.encode())
        }
        Op::StopCluster => body(StopClusterRequest { discard: false }.encode()),
        Op::LendBlocks => body(LendBlocksRequest { lots: vec![1] }.encode()),
        Op::LowerBlock => {
            body(LowerBlockRequest { block: at.block.0, epoch: at.epoch.0, tier: 1 }.encode())
        }
        Op::RaiseBlock => body(
            RaiseBlockRequest { structure: victim.file.id.0, block: at.block.0, epoch: at.epoch.0 }
                .encode(),
        ),
        Op::TierChanged => body(
            TierChangedRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                tier: 1,
            }
            .encode(),
        ),
        Op::BlockFailed => body(
            BlockFailedRequest {
                structure: victim.file.id.0,
                block: at.block.0,
                epoch: at.epoch.0,
                why: "no reason".into(),
            }
            .encode(),
        ),
        Op::EndImport => body(
            EndImportRequest {
                block: victim.kv.at.block.0,
                epoch: victim.kv.at.epoch.0,
                move_id: MOVE,
                commit: true,
            }
            .encode(),
        ),
        Op::OpenBlock => body(
            OpenBlockRequest {
                block: at.block.0,
                epoch: at.epoch.0 + 1,
                job,
                prefix: victim.own.0,
                structure: victim.file.id.0,
                generation: 1,
                kind: Kind::File.code(),
                start: 0,
                end: u64::MAX,
                max_items: 0,
                max_bytes: 0,
                first: true,
                high_mark: 95,
                low_mark: 5,
                importing: 0,
                tier: 0,
                journal: Vec::new(),
                capacity: 0,
            }
            .encode(),
        ),
        Op::FreeBlock => body(FreeBlockRequest { block: at.block.0, epoch: at.epoch.0 }.encode()),
        Op::SetGeneration => {
            body(SetGenerationRequest { prefix: victim.own.0, generation: 1000 }.encode())
        }
        Op::QueueAhead => body(
            QueueAheadRequest {
                block: victim.queue.at.block.0,
                epoch: victim.queue.at.epoch.0,
                items: 0,
                bytes: 0,
            }
            .encode(),
        ),
        Op::Subscribe => {
            let filter = Filter::All;
            body(SubscribeArgs { subscription: 7, kinds: kinds::ALL, filter }.encode())
        }
        Op::AckResults => {
            let mut args = Vec::new();
            put_acks(&[(LaneId(1), Sequence(u64::MAX))], &mut args);
            body(args)
        }
        Op::NextBlock => body(Vec::new()),
        Op::Custom(_) => unreachable!("not an operation of the protocol"),
        Op::FileAppend => write(&[]),
        Op::FileRead => {
            let mut args = Vec::new();
            ReadArgs { offset: 0, length: 1000 }.put(&mut args);
            body(args)
        }
        Op::FileSize | Op::FileSeal | Op::FileMap | Op::FileContinue | Op::KvLength => {
            body(Vec::new())
        }
        Op::QueuePut => write(&[]),
        Op::QueueGet => body(get_one()),
        Op::QueuePeek => body(get_one()[..8].to_vec()),
        Op::QueueLength => body(vec![0]),
        Op::QueuePutExtents | Op::ExtentPutList => {
            let extent = ExtentRef { at: victim.extents.at, id: 1, len: 100 << 10 };
            Request { args: b"\0".to_vec(), payload: put_extents(&[extent]) }
        }
        Op::QueueGetExtents => body(GetExtentsArgs { reserve_ms: 1000, stay: false }.encode()),
        Op::QueueLists => body(0u64.encode()),
        Op::QueueClose => body(Vec::new()),
        Op::QueueAck => {
            let (action, items) = (AckAction::Done, vec![(0, 1)]);
            body(AckArgs { action, timeout_ms: 0, items }.encode())
        }
        Op::KvGet | Op::KvExists => body(b"k".to_vec()),
        Op::KvPut => write(b"\0k"),
        Op::KvPutExtents => {
            let extent = ExtentRef { at: victim.extents.at, id: 1, len: 100 << 10 };
            Request { args: b"\0k".to_vec(), payload: put_extents(&[extent]) }
        }
        Op::KvDeleteExtents => {
            let extent = ExtentRef { at: victim.extents.at, id: 1, len: 100 << 10 };
            Request { args: b"k".to_vec(), payload: put_extents(&[extent]) }
        }
        Op::ExtentPut => write(&[]),
        Op::ExtentGet | Op::ExtentKeep => body(1u64.encode()),
        Op::KvDelete => body(b"\0k".to_vec()),
        Op::KvUpdate | Op::KvUpsert => write(b"k"),
        Op::KvCompareAndSwap => {
            let swap = SwapArgs { present: true, key: b"k", expected: b"v", new: b"harm" };
            let (args, payload) = swap.encode();
            Request { args, payload }
        }
        Op::KvScan => {
            let mut args = Vec::new();
            ScanArgs { cursor: 0, bytes: 1000, brings: Brings::Values, prefix: b"" }.put(&mut args);
            body(args)
        }
        Op::FileReadMany => {
            let mut args = Vec::new();
            ReadManyArgs { bytes: 1000, ranges: vec![(0, 5), (3, 1000)] }.put(&mut args);
            body(args)
        }
        Op::KvMultiGet => {
            Request { args: 1000u32.to_le_bytes().to_vec(), payload: put_keys(&[b"k", b"none"]) }
        }
        Op::KvBatch => {
            let ops = [BatchOp::Get { key: b"k" }, BatchOp::Put { key: b"k", value: b"harm" }];
            Request { args: vec![1], payload: put_batch(&ops) }
        }
        Op::KvAccumulate => write(&accumulate_args(Function::Append, b"k")),
    }
}
