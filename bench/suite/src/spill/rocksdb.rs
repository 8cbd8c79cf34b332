//! The peer of `bench spill --writes`: RocksDB, by the program `bench/rocksdb.c`.

use super::side::{BATCH, Changed, Keys, POINTS, SETTLE_MAX, SKEW, Side, Size, Way};
use super::traffic::Traffic;
use crate::disk::Folder;
use crate::native;
use honeycomb::failure::{CommandResult, Failure};
use honeycomb_env::Entropy;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = include_str!("../../../rocksdb.c");
const CONTRACT: &str = include_str!("../../../contract.h");

/// A database in a folder of its own, which goes with it.
pub struct RocksDb {
    folder: PathBuf,
    child: Child,
    /// Closed first: the program ends then.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    filling: Vec<(f64, f64)>,
}

impl RocksDb {
    /// Builds the program, and fills a database in a new folder of this one.
    pub fn fill(size: Size, folder: &Folder) -> CommandResult<RocksDb> {
        let folder = folder.path().join(format!("rocksdb-{:x}", Entropy::system().next_u64()));
        fs::create_dir(&folder).map_err(|e| Failure::io(folder.display(), &e))?;
        RocksDb::start(&folder, size).inspect_err(|_| drop(fs::remove_dir_all(&folder)))
    }

    fn start(folder: &Path, size: Size) -> CommandResult<RocksDb> {
        let (source, program) = (folder.join("rocksdb.c"), folder.join("rocksdb"));
        for (path, text) in [(&source, SOURCE), (&folder.join("contract.h"), CONTRACT)] {
            fs::write(path, text).map_err(|e| Failure::io(path.display(), &e))?;
        }
        native::build(&source, &program, &["-lrocksdb", "-lm", "-pthread"]).map_err(|e| {
            Failure::invalid(format!("--beside rocksdb needs librocksdb-dev and a C compiler: {e}"))
        })?;
        let mut command = Command::new(&program);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| Failure::io(program.display(), &e))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it was piped"));
        let output = BufReader::new(output);
        let folder = folder.to_owned();
        let mut peer = RocksDb { folder, child, input, output, filling: Vec::new() };
        let database = peer.folder.join("db");
        fs::create_dir(&database).map_err(|e| Failure::io(database.display(), &e))?;
        let ready = peer.ask(&json!({"path": database, "memory": size.memory,
                                     "entries": size.entries, "value": size.value,
                                     "batch": BATCH, "points": POINTS}))?;
        let points = ready["filling"].as_array().into_iter().flatten();
        peer.filling = points.map(|point| (real(&point[0]), real(&point[1]))).collect();
        Ok(peer)
    }

    fn ask(&mut self, line: &Value) -> CommandResult<Value> {
        let failed = |e: &std::io::Error| Failure::from(format!("the program rocksdb: {e}"));
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{line}").map_err(|e| failed(&e))?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|e| failed(&e))?;
        let answer: Value = serde_json::from_str(&answer)
            .map_err(|e| Failure::from(format!("the program rocksdb said '{answer}': {e}")))?;
        match answer["error"].as_str() {
            Some(error) => Err(Failure::from(error.to_owned())),
            None => Ok(answer),
        }
    }
}

fn real(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

impl Side for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    /// Its puts do not say whether they replaced an entry.
    fn can(&self, way: &Way) -> bool {
        !way.asks
    }

    fn filling(&self) -> &[(f64, f64)] {
        &self.filling
    }

    fn change(&mut self, way: Option<&Way>, seconds: f64, reads: bool) -> CommandResult<Changed> {
        let answer = self.ask(&json!({
            "seconds": seconds, "reader": reads as u8, "clients": way.map_or(0, |way| way.clients),
            "batch": way.map_or(1, |way| way.batch),
            "skew": way.filter(|way| way.keys == Keys::Zipf).map_or(0.0, |_| SKEW),
        }))?;
        Ok(Changed {
            puts: answer["puts"].as_u64().unwrap_or(0),
            seconds: real(&answer["seconds"]),
            reads_p99: real(&answer["reads_p99_us"]),
        })
    }

    fn settle(&mut self) -> CommandResult {
        self.ask(&json!({"settle": SETTLE_MAX.as_secs()})).map(drop)
    }

    fn traffic(&self) -> Traffic {
        Traffic::of_folder(self.child.id(), &self.folder.join("db"))
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
