//! Shared by the tests of the wire: the vectors, and every message by its operation.
#![allow(dead_code)] // each test binary uses a part

use honeycomb_wire::messages::*;
use honeycomb_wire::{Field, Malformed};
use serde_json::Value;
use std::fmt::Debug;

/// The folder that holds messages.toml and PROTOCOL.md.
pub const PROTOCOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocol");

/// One of the files of golden vectors.
pub fn vectors(name: &str) -> Value {
    let path = format!("{PROTOCOL}/vectors/{name}.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The items of a list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list, not {value}"))
}

/// A text.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}

/// A number of up to 64 bits; wide ones are decimal strings.
pub fn number(value: &Value) -> u64 {
    match value {
        Value::String(digits) => digits.parse().expect("decimal digits"),
        other => other.as_u64().unwrap_or_else(|| panic!("a number, not {other}")),
    }
}

/// Bytes, from hexadecimal.
pub fn bytes(value: &Value) -> Vec<u8> {
    unhex(text(value)).unwrap_or_else(|| panic!("hexadecimal, not {value}"))
}

/// Bytes, from hexadecimal.
pub fn unhex(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let digits = pairs.map(|pair| std::str::from_utf8(pair).ok().filter(|p| p.len() == 2));
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// The operation with this name.
pub fn op(name: &Value) -> Op {
    let found = Op::ALL.into_iter().find(|op| op.name() == text(name));
    found.unwrap_or_else(|| panic!("no operation is called {name}"))
}

/// The status of a vector, whose name and code must agree.
pub fn status(case: &Value) -> Status {
    let found = Status::ALL.into_iter().find(|s| s.name() == text(&case["status"]));
    let found = found.unwrap_or_else(|| panic!("no such status: {case}"));
    assert_eq!(found as u64, number(&case["code"]), "{case}");
    found
}

/// A decoded message: its bytes when encoded again, and its `Debug` form.
pub type Again = Result<(Vec<u8>, String), Malformed>;

fn again<T: Field + Debug>(bytes: &[u8]) -> Again {
    let message = T::decode(bytes)?;
    Ok((message.encode(), format!("{message:?}")))
}

macro_rules! by_operation {
    ($op:ident, $request:ident, $bytes:ident: $($name:ident $asked:ident $told:ident,)*;
     data $($data:ident)*) => {
        match $op {
            $(Op::$name if $request => again::<$asked>($bytes),
              Op::$name => again::<$told>($bytes),)*
            $(Op::$data)|* | Op::Custom(_) => panic!("{} has no message", $op.name()),
        }
    };
}

/// Reads the message of an operation and writes it again. A new operation does not compile until
/// it is listed here.
pub fn message(op: Op, request: bool, bytes: &[u8]) -> Again {
    by_operation!(op, request, bytes:
        Hello HelloRequest HelloReply,
        Ping PingRequest PingReply,
        PresentGrant PresentGrantRequest PresentGrantReply,
        MoveRegion MoveRegionRequest MoveRegionReply,
        MoveValue MoveValueRequest MoveValueReply,
        MoveDrops MoveDropsRequest MoveDropsReply,
        MoveLanes MoveLanesRequest MoveLanesReply,
        MoveDone MoveDoneRequest MoveDoneReply,
        MovePatch MovePatchRequest MovePatchReply,
        MoveState MoveStateRequest MoveStateReply,
        ExtentAdopt ExtentAdoptRequest ExtentAdoptReply,
        ExtentDrop ExtentDropRequest ExtentDropReply,
        RegisterJob RegisterJobRequest RegisterJobReply,
        DeregisterJob DeregisterJobRequest DeregisterJobReply,
        ListJobs ListJobsRequest ListJobsReply,
        ListKinds ListKindsRequest ListKindsReply,
        JobTree JobTreeRequest JobTreeReply,
        FindJob FindJobRequest FindJobReply,
        JobWeights JobWeightsRequest JobWeightsReply,
        JobCost JobCostRequest JobCostReply,
        SetQuota SetQuotaRequest SetQuotaReply,
        GetQuota GetQuotaRequest GetQuotaReply,
        CreatePrefix CreatePrefixRequest CreatePrefixReply,
        CreateHierarchy CreateHierarchyRequest CreateHierarchyReply,
        RemovePrefix RemovePrefixRequest RemovePrefixReply,
        RenewLeases RenewLeasesRequest RenewLeasesReply,
        LeaseInfo LeaseInfoRequest LeaseInfoReply,
        FlushPrefix FlushPrefixRequest FlushPrefixReply,
        FlushInfo FlushInfoRequest FlushInfoReply,
        CancelFlush CancelFlushRequest CancelFlushReply,
        LocateFlush LocateFlushRequest LocateFlushReply,
        PublishPrefix PublishPrefixRequest PublishPrefixReply,
        EndCopies EndCopiesRequest EndCopiesReply,
        CutBlock CutBlockRequest CutBlockReply,
        ThawBlock ThawBlockRequest ThawBlockReply,
        SetPermissions SetPermissionsRequest SetPermissionsReply,
        DeclareReaders DeclareReadersRequest DeclareReadersReply,
        CommitTask CommitTaskRequest CommitTaskReply,
        CreateStructure CreateStructureRequest CreateStructureReply,
        OpenStructure OpenStructureRequest OpenStructureReply,
        ReopenStructure ReopenStructureRequest ReopenStructureReply,
        RemoveStructure RemoveStructureRequest RemoveStructureReply,
        ExtentBlocks ExtentBlocksRequest ExtentBlocksReply,
        BeginAppend BeginAppendRequest BeginAppendReply,
        CommitAppend CommitAppendRequest CommitAppendReply,
        DropAppend DropAppendRequest DropAppendReply,
        LocateServer LocateServerRequest LocateServerReply,
        ClusterStatus ClusterStatusRequest ClusterStatusReply,
        JoinServer JoinServerRequest JoinServerReply,
        Report ReportRequest ReportReply,
        GrowStructure GrowStructureRequest GrowStructureReply,
        GrowBlock GrowBlockRequest GrowBlockReply,
        SealBlock SealBlockRequest SealBlockReply,
        QueueTaken QueueTakenRequest QueueTakenReply,
        RetireBlock RetireBlockRequest RetireBlockReply,
        BeginMove BeginMoveRequest BeginMoveReply,
        CommitMove CommitMoveRequest CommitMoveReply,
        CancelMove CancelMoveRequest CancelMoveReply,
        LeaveServer LeaveServerRequest LeaveServerReply,
        EndImport EndImportRequest EndImportReply,
        LendBlocks LendBlocksRequest LendBlocksReply,
        LowerBlock LowerBlockRequest LowerBlockReply,
        RaiseBlock RaiseBlockRequest RaiseBlockReply,
        TierChanged TierChangedRequest TierChangedReply,
        BlockFailed BlockFailedRequest BlockFailedReply,
        Evacuate EvacuateRequest EvacuateReply,
        Release ReleaseRequest ReleaseReply,
        DrainServer DrainServerRequest DrainServerReply,
        StopCluster StopClusterRequest StopClusterReply,
        Inventory InventoryRequest InventoryReply,
        OpenBlock OpenBlockRequest OpenBlockReply,
        FreeBlock FreeBlockRequest FreeBlockReply,
        SetGeneration SetGenerationRequest SetGenerationReply,
        QueueAhead QueueAheadRequest QueueAheadReply,
        BeginImport BeginImportRequest BeginImportReply,
        FlushBlock FlushBlockRequest FlushBlockReply,
        CommitFlush CommitFlushRequest CommitFlushReply,
        CommitCustomFlush CommitCustomFlushRequest CommitCustomFlushReply,
        SweepObjects SweepObjectsRequest SweepObjectsReply,
        ReturnBlock ReturnBlockRequest ReturnBlockReply,;
        data Subscribe AckResults NextBlock FileAppend FileRead FileSize FileSeal FileReadMany FileMap
             FileContinue
             QueuePut QueueGet QueuePeek QueueLength QueueClose QueueAck
             QueuePutExtents QueueGetExtents QueueLists
             KvGet KvPut KvDelete KvExists KvUpdate KvUpsert KvCompareAndSwap KvScan KvLength
             KvMultiGet KvBatch KvAccumulate KvPutExtents KvDeleteExtents ExtentPut ExtentGet ExtentKeep
             ExtentPutList
    )
}
