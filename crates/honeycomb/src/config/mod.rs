//! Settings: one table, one name per setting, four sources for its value.
//!
//! The setting `block_size` is the flag `--block-size`, the environment variable `HONEYCOMB_BLOCK_SIZE`,
//! the key `block_size` of the configuration file, or its default; the first source that has a value
//! counts. An empty environment variable counts as not set. `TABLE` is the only definition: flags, their
//! help, the checks, `config show` and the table in `docs/operating.md` come from it.
//!
//! Commands take their settings as a [`Given`] of some [`Group`], which clap fills, and call
//! [`Given::settings`]. An invalid value is an error that names its source. An unknown key of the file is
//! an error in every command.

mod file;
mod kind;
mod show;

pub use kind::{disk_shape, unhex};
pub use show::{ConfigArgs, config};

use crate::failure::{CommandResult, Failure};
use clap::{Arg, ArgAction, ArgMatches, Command};
use honeycomb_server::DiskOptions;
use honeycomb_tiers::{Access, FlushRoot, Place};
use honeycomb_types::{Marks, PolicyKind, ScaleMarks};
use kind::SettingKind;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One setting.
pub struct Setting {
    /// The key in the file; the names of the flag and the variable are derived from it.
    pub name: &'static str,
    kind: SettingKind,
    /// The default; `None` when there is none or it depends on other things.
    default: Option<&'static str>,
    /// The description of the default, for people.
    otherwise: &'static str,
    /// The commands that use it.
    pub of: &'static str,
    help: &'static str,
}

const CLIENTS: &str = "commands that use a cluster";

/// Every setting.
pub const TABLE: [Setting; 34] = [
    Setting {
        name: "address",
        kind: SettingKind::Endpoint,
        default: None,
        otherwise: "from the cluster file",
        of: CLIENTS,
        help: "Address of the controller, as host:port",
    },
    Setting {
        name: "token",
        kind: SettingKind::Token,
        default: None,
        otherwise: "from the cluster file, if it names the same address",
        of: "commands that use a cluster, `server`",
        help: "The cluster's token, in hexadecimal",
    },
    Setting {
        name: "timeout",
        kind: SettingKind::Seconds,
        default: Some("10"),
        otherwise: "10",
        of: CLIENTS,
        help: "Timeout of each request, in seconds",
    },
    Setting {
        name: "job",
        kind: SettingKind::Name,
        default: Some("cli"),
        otherwise: "`cli`",
        of: "commands that use a job",
        help: "The job that the command works in",
    },
    Setting {
        name: "cluster_file",
        kind: SettingKind::Path,
        default: None,
        otherwise: "`$XDG_RUNTIME_DIR/honeycomb/cluster.json`, else `~/.honeycomb/cluster.json`",
        of: "`start`, `stop`, commands that use a cluster",
        help: "The file in which `start` stores the address and the token of its cluster",
    },
    Setting {
        name: "python",
        kind: SettingKind::Path,
        default: None,
        otherwise: "the one next to this program, else `python3` on the path",
        of: "`run`, `demo`, `doctor`",
        help: "The Python interpreter that has the honeycomb package",
    },
    Setting {
        name: "listen",
        kind: SettingKind::Socket,
        default: None,
        otherwise: "`127.0.0.1:7420`; `127.0.0.1:0` for `server`",
        of: "`start`, `controller`, `server`",
        help: "Address and port to listen on; port 0 takes a free one",
    },
    Setting {
        name: "advertise",
        kind: SettingKind::Text,
        default: None,
        otherwise: "the address listened on",
        of: "`start`, `server`",
        help: "HOST or HOST:PORT at which clients reach the memory server",
    },
    Setting {
        name: "insecure",
        kind: SettingKind::Switch,
        default: Some("false"),
        otherwise: "`false`",
        of: "`start`, `controller`, `server`",
        help: "Whether to accept connections from other machines, although traffic is not \
            encrypted",
    },
    Setting {
        name: "unix",
        kind: SettingKind::Switch,
        default: Some("true"),
        otherwise: "`true`",
        of: "`start`, `controller`, `server`, commands that use a cluster",
        help: "Whether clients on the same machine connect over a Unix socket; TCP is always \
            available",
    },
    Setting {
        name: "unix_dir",
        kind: SettingKind::Directory,
        default: None,
        otherwise: "`$XDG_RUNTIME_DIR/honeycomb/sockets`, else `/tmp/honeycomb-UID`",
        of: "`start`, `controller`, `server`",
        help: "The directory of the Unix socket; other users must have no access to it",
    },
    Setting {
        name: "controller",
        kind: SettingKind::Socket,
        default: None,
        otherwise: "none; `server` requires one",
        of: "`server`",
        help: "Address and port of the controller to join",
    },
    Setting {
        name: "memory",
        kind: SettingKind::Size,
        default: None,
        otherwise: "half of the machine's memory, or of its control group's limit",
        of: "`start`, `server`",
        help: "Memory for blocks, in bytes or with a unit (64MiB); only written pages become \
            resident",
    },
    Setting {
        name: "disks",
        kind: SettingKind::Disks,
        default: None,
        otherwise: "none: writes fail when memory is full",
        of: "`start`, `server`",
        help: "Lower tiers for blocks that do not fit in memory: disks, DIR=SIZE or CLASS:DIR=SIZE \
               (nvme, ssd, hdd), in the order of their use; then object stores, \
               s3://BUCKET/NAMES=SIZE \
               (gs, az) or object:DIR=SIZE; everything is deleted there when the server ends",
    },
    Setting {
        name: "disk_shape",
        kind: SettingKind::DiskShape,
        default: None,
        otherwise: "none: disks run at their own speed",
        of: "`start`, `server`",
        help: "For benchmarks: limits each disk to this many megabytes per second, reads and \
            writes together, and adds milliseconds to each request (500:0.1); it cannot make a \
            disk faster",
    },
    Setting {
        name: "block_size",
        kind: SettingKind::BlockSize,
        default: None,
        otherwise: "1/32 to 1/512 of the memory, 64KiB to 128MiB; for `server` that of the \
                    cluster, or 128MiB",
        of: "`start`, `server`",
        help: "Size of a block: a power of two from 64KiB to 1GiB",
    },
    Setting {
        name: "shards",
        kind: SettingKind::Count(254),
        default: None,
        otherwise: "all cores, at most 64",
        of: "`start`, `server`",
        help: "Number of cores that serve requests, 1 to 254",
    },
    Setting {
        name: "controller_shards",
        kind: SettingKind::Count(64),
        default: Some("1"),
        otherwise: "1",
        of: "`start`, `controller`",
        help: "Number of cores of the controller, 1 to 64; fixed for the lifetime of a data \
            directory. One core serves a million requests per second",
    },
    Setting {
        name: "spin_us",
        kind: SettingKind::Micros,
        default: Some("50"),
        otherwise: "50",
        of: "`start`, `controller`, `server`",
        help: "Microseconds that a core polls before it sleeps, while requests arrive in quick \
               succession; up to 1000000, 0 never polls",
    },
    Setting {
        name: "page_reserve",
        kind: SettingKind::Reserve,
        default: None,
        otherwise: "1/64 of the memory, at most 128MiB",
        of: "`start`, `server`",
        help: "Memory that a server touches ahead as soon as data grows, so that writes do not \
               wait for new memory; for blocks of 16MiB and more; 0 touches none",
    },
    Setting {
        name: "page_reserve_idle",
        kind: SettingKind::Seconds,
        default: Some("1"),
        otherwise: "1",
        of: "`start`, `server`",
        help: "Seconds without growth after which that memory is returned to the system",
    },
    Setting {
        name: "lease_ms",
        kind: SettingKind::Lease,
        default: Some("10000"),
        otherwise: "10000",
        of: "`start`, `controller`",
        help: "Default lease duration, in milliseconds; 200 to 604800000",
    },
    Setting {
        name: "server_loss_ms",
        kind: SettingKind::Loss,
        default: Some("15000"),
        otherwise: "15000",
        of: "`start`, `controller`",
        help: "Milliseconds without a message after which a memory server is declared lost, with \
            its data; 3000 to 3600000. A server is suspected after 2500",
    },
    Setting {
        name: "high_mark",
        kind: SettingKind::Count(100),
        default: Some("95"),
        otherwise: "95",
        of: "`start`, `controller`",
        help: "Default high mark: percent of a block in use at which a structure grows or a block \
            splits",
    },
    Setting {
        name: "low_mark",
        kind: SettingKind::Count(49),
        default: Some("40"),
        otherwise: "40",
        of: "`start`, `controller`",
        help: "Default low mark: percent of a block in use below which it merges; must be less \
            than half of the high mark",
    },
    Setting {
        name: "policy",
        kind: SettingKind::Policy,
        default: Some("first-come"),
        otherwise: "`first-come`",
        of: "`start`, `controller`",
        help: "How jobs share memory when it is short: first-come (a job keeps its blocks), \
            max-min (shares by weight) or karma (shares by weight, averaged over time)",
    },
    Setting {
        name: "scale_add_above",
        kind: SettingKind::Count(100),
        default: Some("80"),
        otherwise: "80",
        of: "`start`, `controller`",
        help: "Advise adding servers when more than this percent of any resource is in use",
    },
    Setting {
        name: "scale_remove_below",
        kind: SettingKind::Count(99),
        default: Some("60"),
        otherwise: "60",
        of: "`start`, `controller`",
        help: "Advise removing a server when less than this percent of every resource is in use; \
            must be less than scale_add_above",
    },
    Setting {
        name: "scale_min_servers",
        kind: SettingKind::Count(1_000_000),
        default: Some("1"),
        otherwise: "1",
        of: "`start`, `controller`",
        help: "Minimum number of memory servers",
    },
    Setting {
        name: "scale_hook",
        kind: SettingKind::Path,
        default: None,
        otherwise: "none: advice is logged, and shown by `status`",
        of: "`start`, `controller`",
        help: "A program to run with `add N` or `remove ADDRESS` when servers should be added or \
            removed, at most once in 60 s",
    },
    Setting {
        name: "flush_root",
        kind: SettingKind::Place,
        default: None,
        otherwise: "none: no data outlives its lease",
        of: "`start`, `server`",
        help: "Where prefixes created with --flush-to or --persist are flushed: a directory, or \
               s3://BUCKET/PATH, gs://..., az://... with credentials from the environment",
    },
    Setting {
        name: "stop_wait",
        kind: SettingKind::Seconds,
        default: Some("30"),
        otherwise: "30",
        of: "`start`, `stop`, `controller`",
        help: "Seconds that a stopping cluster waits while flushes fail and no block is written; \
            four times that while none fails. Each written block restarts the wait",
    },
    Setting {
        name: "data_dir",
        kind: SettingKind::Directory,
        default: None,
        otherwise: "for `controller` a folder named after its address in \
            `$XDG_STATE_HOME/honeycomb/controller`, else \
                    `~/.local/state/honeycomb/controller`; none with port 0 or `--volatile`, and \
                    for `start`",
        of: "`start`, `controller`",
        help: "Folder for the controller's log and the cluster's key; a restart continues from \
            them",
    },
    Setting {
        name: "prices",
        kind: SettingKind::Prices,
        default: Some(honeycomb_client::cost::PRICES),
        otherwise: "`memory=0.008,nvme=0.0001,ssd=0.0001,hdd=0.00006,object=0.00003,to-object=0.005`",
        of: "`cost`",
        help: "Prices in any unit of money: of a gigabyte for an hour in memory, nvme, ssd, hdd \
            and object, of a gigabyte demoted or promoted to a tier (to-object, ...), and of a \
            gigabyte moved to another server (moved)",
    },
];

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The environment.
    Environment,
    /// The configuration file, and its line.
    File(PathBuf, usize),
    /// No source has a value.
    Default,
}

/// The settings that a command uses.
pub trait Group: 'static {
    /// Their names.
    const NAMES: &'static [&'static str];
}

macro_rules! groups {
    ($($(#[$doc:meta])* $name:ident = [$($setting:literal),*];)*) => {$(
        $(#[$doc])*
        pub struct $name;
        impl Group for $name {
            const NAMES: &'static [&'static str] = &[$($setting),*];
        }
    )*};
}

groups! {
    /// How to reach a cluster.
    Reach = ["address", "token", "timeout", "unix", "cluster_file"];
    /// How to reach a cluster, and the job.
    InJob = ["job", "address", "token", "timeout", "unix", "cluster_file"];
    /// The settings of `cost`.
    ForCost = ["prices", "address", "token", "timeout", "unix", "cluster_file"];
    /// The settings of `run`.
    ForRun = ["python", "address", "token", "timeout", "unix", "cluster_file"];
    /// The settings of `demo`.
    ForDemo = ["python"];
    /// The settings of `start`.
    ForStart = [
        "listen", "advertise", "insecure", "unix", "unix_dir", "memory", "disks", "disk_shape",
        "block_size", "shards", "spin_us", "page_reserve", "page_reserve_idle", "lease_ms",
        "server_loss_ms", "high_mark", "low_mark", "flush_root",
        "cluster_file", "stop_wait", "data_dir", "controller_shards", "policy", "scale_add_above",
        "scale_remove_below", "scale_min_servers", "scale_hook"
    ];
    /// The settings of `stop`.
    ForStop = ["stop_wait", "timeout", "unix", "cluster_file"];
    /// The settings of `controller`.
    ForController = [
        "listen", "insecure", "unix", "unix_dir", "spin_us", "lease_ms", "server_loss_ms",
        "high_mark", "low_mark",
        "stop_wait", "data_dir",
        "controller_shards", "policy", "scale_add_above", "scale_remove_below", "scale_min_servers",
        "scale_hook"
    ];
    /// The settings of `server`.
    ForServer = [
        "controller", "token", "listen", "advertise", "insecure", "unix", "unix_dir", "memory",
        "disks", "disk_shape", "block_size", "shards", "spin_us", "page_reserve",
        "page_reserve_idle", "flush_root"
    ];
    /// The settings that `doctor` checks.
    ForDoctor = [
        "address", "token", "timeout", "unix", "cluster_file", "python", "listen", "memory",
        "block_size", "shards"
    ];
    /// All.
    All = [
        "address", "token", "timeout", "job", "cluster_file", "python", "listen", "advertise",
        "insecure", "unix", "unix_dir", "controller", "memory", "disks", "disk_shape", "block_size",
        "shards",
        "controller_shards", "spin_us", "page_reserve", "page_reserve_idle",
        "lease_ms", "server_loss_ms", "high_mark", "low_mark", "policy", "scale_add_above", "scale_remove_below",
        "scale_min_servers", "scale_hook", "flush_root", "stop_wait", "data_dir", "prices"
    ];
}

impl Setting {
    /// The setting of this name.
    fn named(name: &str) -> Option<&'static Setting> {
        TABLE.iter().find(|s| s.name == name)
    }

    /// `--block-size`, without the dashes in front.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// `HONEYCOMB_BLOCK_SIZE`.
    pub fn variable(&self) -> String {
        format!("HONEYCOMB_{}", self.name.to_uppercase())
    }

    /// The id of the flag in clap. It differs from the name, because commands have arguments of that name.
    fn id(&self) -> String {
        format!("setting {}", self.name)
    }

    fn arg(&'static self) -> Arg {
        let otherwise = self.otherwise.replace('`', "");
        let arg = Arg::new(self.id())
            .long(self.flag())
            .value_name(self.kind.placeholder())
            .help(format!("{} [env: {}] [default: {otherwise}]", self.help, self.variable()))
            .help_heading("Settings")
            .value_parser(|text: &str| self.kind.check(text).map(|()| text.to_owned()));
        match self.kind {
            SettingKind::Switch => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            }
            _ => arg,
        }
    }
}

/// The flags of a group's settings, from the command line.
pub struct Given<G> {
    flags: Vec<(&'static str, String)>,
    file: Option<PathBuf>,
    group: PhantomData<G>,
}

impl<G: Group> clap::Args for Given<G> {
    fn augment_args(mut command: Command) -> Command {
        for name in G::NAMES {
            command = command.arg(Setting::named(name).expect("groups name settings").arg());
        }
        command.arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .help(
                    "The configuration file [env: HONEYCOMB_CONFIG] [default: \
                     $XDG_CONFIG_HOME/honeycomb/config.toml, else ~/.config/honeycomb/config.toml]",
                )
                .help_heading("Settings")
                .action(ArgAction::Set)
                .value_parser(clap::value_parser!(PathBuf)),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<G: Group> clap::FromArgMatches for Given<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &'static str| {
            let id = Setting::named(name).expect("groups name settings").id();
            matches.get_one::<String>(&id).map(|text| (name, text.clone()))
        };
        let flags = G::NAMES.iter().filter_map(|name| given(name)).collect();
        let file = matches.get_one::<PathBuf>("config").cloned();
        Ok(Given { flags, file, group: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<G> Given<G> {
    /// The flags as arguments of a child process that shall have the same settings.
    pub fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let flags = self
            .flags
            .iter()
            .map(|(name, text)| format!("--{}={text}", name.replace('_', "-")).into());
        let file = self.file.iter().flat_map(|path| ["--config".into(), path.into()]);
        flags.chain(file).collect()
    }
}

impl<G: Group> Given<G> {
    /// The settings of the group, each from the first source that has a value.
    ///
    /// An invalid value is `InvalidArgument`, with the file and the line, or with the variable.
    pub fn settings(&self) -> CommandResult<Settings> {
        let path = file::path(self.file.as_deref());
        let file = match &path {
            Some((path, named)) => file::read(path, *named)?,
            None => None,
        };
        let mut values = Vec::new();
        for name in G::NAMES {
            let setting = Setting::named(name).expect("groups name settings");
            let flag = self.flags.iter().find(|(n, _)| n == name);
            let (text, origin) = match (flag, variable(&setting.variable())) {
                (Some((_, text)), _) => (Some(text.clone()), Origin::Flag),
                (None, Some(text)) => {
                    setting.kind.check(&text).map_err(|why| {
                        Failure::invalid(format!("{}: {why}", setting.variable()))
                    })?;
                    (Some(text), Origin::Environment)
                }
                (None, None) => match file.as_ref().and_then(|f| f.get(name)) {
                    Some((text, line)) => {
                        let path =
                            file.as_ref().expect("a value from a file has that file").path.clone();
                        (Some(text.to_owned()), Origin::File(path, line))
                    }
                    None => (setting.default.map(str::to_owned), Origin::Default),
                },
            };
            values.push(Resolved { setting, text, origin });
        }
        Ok(Settings { values, file: file.map(|f| f.path) })
    }
}

/// An environment variable; `None` when it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

struct Resolved {
    setting: &'static Setting,
    text: Option<String>,
    origin: Origin,
}

/// Settings with their values. Reading a setting that is not in the group is a defect.
pub struct Settings {
    values: Vec<Resolved>,
    /// The configuration file, when there is one.
    file: Option<PathBuf>,
}

impl Settings {
    fn of(&self, name: &str) -> &Resolved {
        self.values.iter().find(|r| r.setting.name == name).expect("a setting of this group")
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.of(name).text.as_deref()
    }

    fn number(&self, name: &str) -> Option<u64> {
        let resolved = self.of(name);
        resolved.text.as_deref().map(|text| resolved.setting.kind.number(text))
    }

    fn socket(&self, name: &str) -> Option<SocketAddr> {
        self.text(name).map(|text| text.parse().expect("checked"))
    }

    /// The source of a setting's value.
    pub fn origin(&self, name: &str) -> &Origin {
        &self.of(name).origin
    }

    /// The configuration file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// host:port of the controller, without a scheme.
    pub fn address(&self) -> Option<String> {
        let text = self.text("address")?;
        Some(text.strip_prefix("honeycomb://").unwrap_or(text).trim_end_matches('/').to_owned())
    }

    /// The token.
    pub fn token(&self) -> Option<Vec<u8>> {
        self.text("token").map(|text| kind::unhex(text).expect("checked"))
    }

    /// The timeout of a request.
    pub fn timeout(&self) -> Duration {
        let text = self.text("timeout").expect("the setting has a default");
        Duration::from_secs_f64(text.trim().parse().expect("checked"))
    }

    /// The job.
    pub fn job(&self) -> &str {
        self.text("job").expect("the setting has a default")
    }

    /// The prices for the use of the cluster.
    pub fn prices(&self) -> &str {
        self.text("prices").expect("the setting has a default")
    }

    /// The cluster file.
    pub fn cluster_file(&self) -> CommandResult<PathBuf> {
        if let Some(path) = self.text("cluster_file") {
            return Ok(path.into());
        }
        if let Some(runtime) = variable("XDG_RUNTIME_DIR") {
            return Ok(Path::new(&runtime).join("honeycomb/cluster.json"));
        }
        match variable("HOME") {
            Some(home) => Ok(Path::new(&home).join(".honeycomb/cluster.json")),
            None => {
                Err("cannot choose a cluster file: neither HOME nor XDG_RUNTIME_DIR is set; set \
                         HONEYCOMB_CLUSTER_FILE"
                    .into())
            }
        }
    }

    /// The Python interpreter that has the package, if it is configured.
    pub fn python(&self) -> Option<PathBuf> {
        self.text("python").map(PathBuf::from)
    }

    /// The address to listen on.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.socket("listen")
    }

    /// The address that clients use.
    pub fn advertise(&self) -> Option<String> {
        self.text("advertise").map(str::to_owned)
    }

    /// Whether other machines may connect.
    pub fn insecure(&self) -> bool {
        self.text("insecure").is_some_and(|text| text == "true")
    }

    /// Whether clients connect to nodes of their own machine over Unix sockets.
    pub fn unix(&self) -> bool {
        self.text("unix").is_some_and(|text| text == "true")
    }

    /// The directory of a node's Unix socket; `None` when it has no socket.
    pub fn unix_dir(&self) -> Option<PathBuf> {
        if !self.unix() {
            return None;
        }
        if let Some(path) = self.text("unix_dir") {
            return Some(path.into());
        }
        Some(match variable("XDG_RUNTIME_DIR") {
            Some(runtime) => Path::new(&runtime).join("honeycomb/sockets"),
            None => format!("/tmp/honeycomb-{}", rustix::process::geteuid().as_raw()).into(),
        })
    }

    /// The controller to join.
    pub fn controller(&self) -> Option<SocketAddr> {
        self.socket("controller")
    }

    /// Bytes for blocks.
    pub fn memory(&self) -> Option<u64> {
        self.number("memory")
    }

    /// Disks and object stores of the lower tiers.
    pub fn disks(&self) -> Vec<DiskOptions> {
        let text = self.text("disks");
        let mut disks =
            text.map_or_else(Vec::new, |text| kind::disks(text).expect("the setting was checked"));
        let shape = self.text("disk_shape");
        let shape = shape.map(|text| kind::disk_shape(text).expect("the setting was checked"));
        for disk in &mut disks {
            match disk.class.takes_final_only() {
                true => disk.access = Access::of_environment(),
                false => disk.shape = shape,
            }
        }
        disks
    }

    /// The size of a block, in bytes.
    pub fn block_size(&self) -> Option<u64> {
        self.number("block_size")
    }

    /// Number of cores that serve requests.
    pub fn shards(&self) -> Option<u8> {
        self.number("shards").map(|n| n as u8)
    }

    /// Number of cores of the controller.
    pub fn controller_shards(&self) -> u16 {
        self.number("controller_shards").expect("the setting has a default") as u16
    }

    /// The default lease duration, in milliseconds.
    pub fn lease_ms(&self) -> u32 {
        self.number("lease_ms").expect("the setting has a default") as u32
    }

    /// Milliseconds without a message after which a memory server is declared lost.
    pub fn server_loss_ms(&self) -> u32 {
        self.number("server_loss_ms").expect("the setting has a default") as u32
    }

    /// The high and the low mark.
    pub fn marks(&self) -> CommandResult<Marks> {
        let mark = |name| self.number(name).expect("the setting has a default") as u8;
        let (high, low) = (mark("high_mark"), mark("low_mark"));
        Marks::new(high, low, Marks::default()).ok_or_else(|| {
            Failure::invalid(format!(
                "low_mark {low} is too high for high_mark {high}: it must be less than half of \
                 high_mark, or merged blocks would split again at once"
            ))
        })
    }

    /// How jobs share memory when it is short.
    pub fn policy(&self) -> PolicyKind {
        let name = self.text("policy").expect("the setting has a default");
        PolicyKind::from_name(name).expect("the setting was checked")
    }

    /// The marks of the advice to add or remove servers.
    pub fn scale(&self) -> CommandResult<ScaleMarks> {
        let number = |name| self.number(name).expect("the setting has a default");
        let (above, below) = (number("scale_add_above"), number("scale_remove_below"));
        let least = number("scale_min_servers") as u32;
        ScaleMarks::new(above as u8, below as u8, least).ok_or_else(|| {
            Failure::invalid(format!(
                "scale_remove_below {below} must be less than scale_add_above {above}, or servers \
                 would be added and removed for ever"
            ))
        })
    }

    /// The program to run when servers should be added or removed.
    pub fn scale_hook(&self) -> Option<PathBuf> {
        self.text("scale_hook").map(PathBuf::from)
    }

    /// The place under which data is flushed.
    pub fn flush_root(&self) -> Option<FlushRoot> {
        let place = Place::parse(self.text("flush_root")?).expect("checked");
        Some(FlushRoot { place, access: Access::of_environment() })
    }

    /// How long a stopping cluster waits for failing flushes.
    pub fn stop_wait(&self) -> Duration {
        self.seconds("stop_wait")
    }

    fn seconds(&self, name: &str) -> Duration {
        let text = self.text(name).expect("the setting has a default");
        Duration::from_secs_f64(text.trim().parse().expect("checked"))
    }

    /// The folder of the controller's log.
    pub fn data_dir(&self) -> Option<PathBuf> {
        self.text("data_dir").map(PathBuf::from)
    }

    /// The folder for this user's files that outlive a process; `None` without a home.
    pub fn state_folder(&self) -> Option<PathBuf> {
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| Path::new(&home).join(".local/state"));
        state.or_else(home).map(|state| state.join("honeycomb"))
    }

    /// Bytes of the reserve of touched pages; `None` if the memory decides.
    pub fn page_reserve(&self) -> Option<u64> {
        self.number("page_reserve")
    }

    /// How long the reserve is kept without growth.
    pub fn page_reserve_idle(&self) -> Duration {
        self.seconds("page_reserve_idle")
    }

    /// How long a core polls.
    pub fn spin(&self) -> Duration {
        Duration::from_micros(self.number("spin_us").expect("the setting has a default"))
    }
}

/// Environment variables with our prefix that name no setting, each with the most similar name.
pub fn unknown_variables() -> Vec<(String, Option<String>)> {
    let known: Vec<String> = TABLE.iter().map(Setting::variable).collect();
    let mut unknown: Vec<_> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("HONEYCOMB_") && name != "HONEYCOMB_CONFIG")
        .filter(|name| !known.contains(name))
        .map(|name| {
            let near = kind::nearest(&name, known.iter().map(String::as_str));
            (name, near.map(str::to_owned))
        })
        .collect();
    unknown.sort();
    unknown
}

/// The path of the configuration file, whether or not it exists.
pub fn default_file() -> Option<PathBuf> {
    file::path(None).map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markdown() -> String {
        let mut text = String::from(
            "| Setting | Flag | Environment | Default | Of |\n| --- | --- | --- | --- | --- |\n",
        );
        for s in &TABLE {
            text += &format!(
                "| `{}` | `--{} {}` | `{}` | {} | {} |\n",
                s.name,
                s.flag(),
                s.kind.placeholder(),
                s.variable(),
                s.otherwise,
                s.of
            );
        }
        text
    }

    #[test]
    fn the_document_has_the_table() {
        let document = include_str!("../../../../docs/operating.md");
        assert!(document.contains(&markdown()), "docs/operating.md shall have:\n{}", markdown());
    }

    #[test]
    fn every_setting_is_in_the_group_of_all_and_defaults_are_valid() {
        assert_eq!(All::NAMES.len(), TABLE.len());
        for setting in &TABLE {
            assert!(All::NAMES.contains(&setting.name));
            assert_eq!(setting.default.map_or(Ok(()), |text| setting.kind.check(text)), Ok(()));
        }
    }
}
