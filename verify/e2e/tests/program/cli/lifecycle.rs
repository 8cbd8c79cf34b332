//! `start`, `stop`, `controller`, `server`, `completion`, and an unreachable cluster.

use super::home::Home;
use honeycomb_env::Clock;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

#[test]
fn start_tells_where_the_token_is_and_not_what_it_is() {
    let home = Home::with_cluster();
    let (address, token) = home.place();
    let again = home.run(&["start", "--background", "--listen", "127.0.0.1:0", "--json"]);
    assert_eq!((again.code, again.error()["status"].as_str()), (8, Some("AlreadyExists")));
    let sentence = home.run(&["start", "--background", "--listen", "127.0.0.1:0"]);
    assert!(sentence.code == 8 && sentence.err.contains(&address), "{}", sentence.err);
    assert_eq!(home.json(&["stop"])["address"], address.as_str());
    assert_eq!(home.run(&["stop"]).code, 5);
    let args = ["start", "--background", "--listen", "127.0.0.1:0", "--memory", "64MiB"];
    for json in [&[][..], &["--json"]] {
        let ran = home.run(&[&args[..], json].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let (_, new) = home.place();
        assert_ne!(new, token);
        assert!(!ran.out.contains(&new), "the token is on the screen: {}", ran.out);
        assert!(ran.out.contains(home.cluster_file().to_str().unwrap()), "{}", ran.out);
        home.ok(&["status"]);
        home.ok(&["stop"]);
    }
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_starts() {
    let home = Home::new();
    for (args, told) in [
        (&["--memory", "999TiB"][..], "--memory 999.0 TiB exceeds the"),
        (&["--memory", "1MiB", "--block-size", "1GiB"], "too small for one block of 1.0 GiB"),
        (&["--block-size", "100KiB"], "not a power of two from 64KiB to 1GiB"),
        (&["--listen", "0.0.0.0:0"], "use --insecure to allow this"),
        (&["--listen", "0.0.0.0:0", "--insecure"], "--advertise"),
        (&["--memory", "many"], "is not a size"),
        (&["--memory", "1GiB", "--page-reserve", "64MiB"], "is for blocks of at least 16 MiB"),
        (&["--memory", "8GiB", "--page-reserve", "64KiB"], "is less than one chunk"),
    ] {
        for how in ["--background", "--json"] {
            let ran = home.run(&[&["start", how], args].concat());
            assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
            assert!(ran.err.contains(told), "{args:?}: {}", ran.err);
        }
    }
    assert!(!home.cluster_file().exists());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = home.run(&["start", "--listen", &address]);
    assert!(ran.code == 8 && ran.err.contains("the port is in use"), "{} {}", ran.code, ran.err);
}

#[test]
fn server_on_loopback_is_refused_for_a_controller_elsewhere() {
    let home = Home::new();
    // An address for documentation: nothing is sent to it, because the settings are checked first.
    let server = ["server", "--controller", "192.0.2.1:7420", "--token", &"00".repeat(32)];
    for more in [&["--block-size", "64KiB"][..], &["--listen", "127.0.0.1:0"]] {
        let ran = home.run(&[&server[..], &["--memory", "64MiB"], more].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("192.0.2.1:7420 cannot reach"), "{}", ran.err);
        assert!(ran.err.contains("--listen") && ran.err.contains("--advertise"), "{}", ran.err);
    }
}

/// A process that runs until it gets a signal, and its first line.
fn running(mut command: Command) -> (Child, Value) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}")))
}

/// A controller, its address and its token.
fn controller(home: &Home) -> (Child, String, String) {
    let (child, told) = running(home.command(&["controller", "--json", "--listen", "127.0.0.1:0"]));
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    (child, text("address"), text("token"))
}

fn end(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "SIGTERM is a clean end");
}

#[test]
fn force_takes_more_memory_than_there_is_until_it_is_written() {
    let home = Home::new();
    let args = ["start", "--json", "--listen", "127.0.0.1:0", "--force", "--memory", "1TiB"];
    let (child, told) = running(home.command(&[&args[..], &["--block-size", "1GiB"]].concat()));
    assert_eq!(told["cluster_file"], home.cluster_file().to_str().unwrap());
    assert!(home.json(&["status"])["blocks"].as_u64().unwrap() >= 1000);
    end(child);
    assert!(!home.cluster_file().exists());
}

#[test]
fn controller_and_server_take_their_settings_from_the_environment() {
    let home = Home::new();
    let mut command = home.command(&["controller", "--json"]);
    command.env("HONEYCOMB_LISTEN", "127.0.0.1:0");
    let (controller, told) = running(command);
    let (address, token) = (told["address"].as_str().unwrap(), told["token"].as_str().unwrap());
    let needed = home.run(&["server", "--controller", address, "--json"]);
    assert_eq!((needed.code, needed.error()["status"].as_str()), (2, Some("InvalidArgument")));
    let mut command = home.command(&["server", "--json", "--memory", "64MiB", "--shards", "1"]);
    command.env("HONEYCOMB_CONTROLLER", address).env("HONEYCOMB_TOKEN", token);
    command.env("HONEYCOMB_BLOCK_SIZE", "64KiB");
    let (server, _) = running(command);
    let status = home.json(&["status", "--address", address, "--token", token]);
    assert_eq!(
        (&status["blocks"], &status["servers"][0]["block_size"]),
        (&1024.into(), &65536.into())
    );
    end(server);
    end(controller);
}

#[test]
fn server_takes_the_block_size_of_its_cluster() {
    let home = Home::new();
    let (controller, address, token) = controller(&home);
    let (address, token) = (&*address, &*token);
    let join = ["server", "--json", "--shards", "1", "--controller", address, "--token", token];
    let serve = |more: &[&str]| home.command(&[&join[..], more].concat());
    let sizes = || -> Vec<u64> {
        let status = home.json(&["status", "--address", address, "--token", token]);
        let servers = status["servers"].as_array().unwrap().iter();
        servers.map(|server| server["block_size"].as_u64().unwrap()).collect()
    };
    let first = running(serve(&["--memory", "64MiB", "--block-size", "256KiB"])).0;
    let second = running(serve(&["--memory", "64MiB"])).0;
    assert_eq!(sizes(), [256 << 10; 2]);
    let other = home.run(&[&join[..], &["--memory", "64MiB", "--block-size", "1MiB"]].concat());
    assert_eq!(other.error()["status"], "InvalidArgument", "{}", other.err);
    assert!(other.err.contains("start it with block_size 262144"), "{}", other.err);
    [first, second, controller].into_iter().for_each(end);
}

#[test]
fn a_server_that_is_drained_ends_by_itself() {
    let home = Home::new();
    let (controller, address, token) = controller(&home);
    let (address, token) = (&*address, &*token);
    let there = ["--address", address, "--token", token];
    let serve = |memory: &str, more: &[&str]| {
        let args = ["server", "--json", "--memory", memory, "--block-size", "64KiB"];
        let to = ["--shards", "1", "--controller", address, "--token", token];
        let (child, told) = running(home.command(&[&args[..], &to, more].concat()));
        (child, told["address"].as_str().unwrap().to_owned())
    };
    let ((mut first, one), (second, two)) =
        (serve("4MiB", &[]), serve("128KiB", &["--drain-on-stop=60"]));
    let drain = |args: &[&str]| home.run(&[&["drain"], args, &there, &["--json"]].concat());
    // The first block is on the first server, and the other server has only blocks reserved for splits.
    assert_eq!(home.feed(&[&["append", "notes"][..], &there].concat(), b"blue").code, 0);
    let late = drain(&[&one, "--wait", "0"]);
    assert_eq!((late.code, late.error()["status"].as_str()), (5, Some("DeadlineExceeded")));
    assert!(late.err.contains("1 block without room elsewhere: add a server"), "{}", late.err);
    assert_eq!(drain(&[&two]).error()["status"], "InvalidArgument", "it is the last");
    let states = |servers: &Value| -> Vec<String> {
        let all = servers.as_array().unwrap().iter();
        all.map(|server| server["state"].as_str().unwrap().to_owned()).collect()
    };
    let status = home.json(&[&["status"][..], &there].concat());
    assert_eq!(states(&status["servers"]), ["draining", "serving"]);
    let shown = home.ok(&[&["status"][..], &there].concat());
    assert!(shown.contains("draining: 1 block without room"), "{shown}");
    assert_eq!(home.run(&[&["rm", "notes"][..], &there].concat()).code, 0);
    assert!(first.wait().unwrap().success(), "it ends like one that was told to");
    let (mut third, three) = serve("4MiB", &[]);
    let gone = drain(&[&three, "--wait", "20"]);
    assert!(gone.code == 0 && gone.json()["state"] == "gone", "{} {}", gone.out, gone.err);
    assert!(third.wait().unwrap().success());
    // On SIGTERM, a server requests its own drain. The only server cannot be drained, and exits anyway.
    let (fourth, _) = serve("4MiB", &["--drain-on-stop"]);
    end(second);
    let status = home.json(&[&["status"][..], &there].concat());
    assert_eq!(states(&status["servers"]), ["serving"]);
    end(fourth);
    end(controller);
}

#[test]
fn nobody_at_the_address_is_told_soon() {
    let home = Home::new();
    let none = home.run(&["status", "--json"]);
    assert_eq!((none.code, none.error()["status"].as_str()), (5, Some("Unavailable")));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (address, told) in [
        (free.to_string(), "refused"),
        // Reserved for names that never exist (RFC 2606).
        ("nobody.invalid:1".to_owned(), "the host name cannot be resolved"),
    ] {
        let clock = Clock::start();
        let ran = home.run(&["status", "--address", &address, "--token", "00", "--json"]);
        assert_eq!((ran.code, ran.error()["status"].as_str()), (5, Some("Unavailable")));
        assert!(ran.err.contains(told) && ran.err.contains(&address), "{}", ran.err);
        // The default is ten; a slow resolver may take some of them.
        assert!(clock.now().as_millis() < 9_000, "{address} took {} ms", clock.now().as_millis());
    }
}

#[test]
fn completions_know_every_command() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = home.ok(&["completion", shell]);
        for word in ["doctor", "lease", "scan", "if-absent", "block-size"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    let script = home.write("c.bash", home.ok(&["completion", "bash"]));
    let checked = Command::new("bash").arg("-n").arg(script).status().unwrap();
    assert!(checked.success());
    assert_eq!(home.run(&["completion", "sh"]).code, 2);
}
