//! Sources of settings, their precedence, and errors.

use super::home::{Home, mode};
use serde_json::Value;

fn setting(home: &Home, name: &str, env: &[(&str, &str)], flags: &[&str]) -> (Value, Value) {
    let mut command = home.command(&[&["config", "show", "--json"], flags].concat());
    command.envs(env.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = shown["settings"].as_array().unwrap();
    let found = all.iter().find(|s| s["name"] == name).unwrap();
    (found["value"].clone(), found["origin"]["from"].clone())
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let home = Home::new();
    let flag = ["--block-size", "1MiB"];
    let env = [("HONEYCOMB_BLOCK_SIZE", "256KiB")];
    let is = |value: &str, from: &str| (Value::from(value), Value::from(from));
    assert_eq!(setting(&home, "block_size", &[], &[]), (Value::Null, "default".into()));
    assert_eq!(setting(&home, "timeout", &[], &[]), is("10", "default"));
    home.write("config/honeycomb/config.toml", "# mine\nblock_size = 65536\n");
    assert_eq!(setting(&home, "block_size", &[], &[]), is("65536", "file"));
    assert_eq!(setting(&home, "block_size", &env, &[]), is("256KiB", "environment"));
    assert_eq!(setting(&home, "block_size", &env, &flag), is("1MiB", "flag"));
    let empty = [("HONEYCOMB_BLOCK_SIZE", "")];
    assert_eq!(setting(&home, "block_size", &empty, &[]), is("65536", "file"));
    // Another file: by flag, and by the environment; the flag counts.
    home.write("one.toml", "block_size = \"2MiB\"");
    home.write("two.toml", "block_size = \"4MiB\"");
    let two = [("HONEYCOMB_CONFIG", "two.toml")];
    assert_eq!(setting(&home, "block_size", &two, &[]), is("4MiB", "file"));
    assert_eq!(setting(&home, "block_size", &two, &["--config", "one.toml"]), is("2MiB", "file"));
    let text = home.ok(&["config", "show", "--origin"]);
    let line = text.lines().find(|l| l.starts_with("block_size")).unwrap();
    assert!(line.contains("65536") && line.ends_with("config.toml:2"), "{line}");
}

#[test]
fn the_settings_that_are_shown_are_those_that_count() {
    let home = Home::with_cluster();
    let (address, token) = home.place();
    home.ok(&["put", "n:kv", "k", "v", "--job", "mine"]);
    // Without a cluster file, the configuration alone names the cluster.
    let config = format!("address = \"{address}\"\ntoken = \"{token}\"\njob = \"mine\"\n");
    mode(&home.write("remote.toml", config), 0o600);
    let away = ["--config", "remote.toml", "--cluster-file", "none.json"];
    assert_eq!(home.ok(&[&["get", "n:kv", "k"], &away[..]].concat()), "v");
    assert_eq!(home.run(&["get", "n:kv", "k", "--cluster-file", "none.json"]).code, 5);
    let shown = home.ok(&["config", "show", "--config", "remote.toml"]);
    assert!(!shown.contains(&token) && shown.contains("(secret)"), "{shown}");
    // A local address needs no token, by whatever name; another one does.
    let port = address.rsplit_once(':').unwrap().1;
    home.ok(&["status", "--address", &format!("localhost:{port}")]);
    let other = home.run(&["status", "--address", "localhost:1", "--json"]);
    assert_eq!((other.code, other.error()["status"].as_str()), (4, Some("Unauthenticated")));
    let wrong = home.run(&["status", "--token", "00ff", "--json"]);
    assert_eq!((wrong.code, wrong.error()["status"].as_str()), (4, Some("Unauthenticated")));
}

#[test]
fn mistakes_name_their_place_and_the_right_name() {
    let home = Home::new();
    for (text, told) in [
        (
            "timeout = 1\nblok_size = 1\n",
            "c.toml:2: unknown setting 'blok_size'; did you mean 'block_size'?",
        ),
        ("shards = 0", "c.toml:1: shards: '0' is not a whole number from 1 to 254"),
        ("block_size = \"100KiB\"", "c.toml:1: block_size: '100KiB' is not a power of two"),
        ("memory 1", "c.toml:1: "),
    ] {
        home.write("c.toml", text);
        // Every command checks the whole file, also one that uses other settings.
        for command in [["config", "show"], ["ls", "a"]] {
            let ran = home.run(&[&command[..], &["--config", "c.toml", "--json"]].concat());
            let error = ran.error();
            assert_eq!((ran.code, error["status"].as_str()), (2, Some("InvalidArgument")));
            assert!(error["message"].as_str().unwrap().starts_with(told), "{error}");
        }
    }
    let variable = home.with("HONEYCOMB_TIMEOUT", "soon", &["status", "--json"]);
    assert_eq!(variable.code, 2);
    let message = variable.error()["message"].to_string();
    assert!(message.contains("HONEYCOMB_TIMEOUT: 'soon'"), "{message}");
    // An invalid variable does not affect commands that do not use it.
    assert_eq!(home.with("HONEYCOMB_SHARDS", "many", &["status"]).code, 5);
    assert_eq!(home.run(&["status", "--timeout", "soon"]).code, 2);
    let missing = home.run(&["status", "--config", "missing.toml", "--json"]);
    assert_eq!(missing.error()["status"], "InvalidArgument");
    mode(&home.write("open.toml", "token = \"00\""), 0o644);
    let open = home.run(&["status", "--config", "open.toml", "--json"]);
    assert_eq!((open.code, open.error()["status"].as_str()), (4, Some("PermissionDenied")));
    assert!(open.err.contains("chmod 600"), "{}", open.err);
}
