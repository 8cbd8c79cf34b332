//! Unix sockets: connections to a node for clients on its machine.
//!
//! A node that listens on TCP also listens on a Unix socket and sends its path in the handshake; a
//! client that can connect to it switches to it. Only the node's own user can: the socket is in a
//! directory of that user, and each side checks the identity of the other before a token is sent
//! (`connect`). The path has a random part, so that no two nodes ever have the same one: a client
//! on another machine, or in a container that does not share the directory, finds no socket there.

use honeycomb_env::Entropy;
use honeycomb_env::LockFile;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt::socket_peercred,
};
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The name of the file that is locked while sockets are created or removed.
const LOCK: &str = "lock";
/// The suffix of socket names.
const SUFFIX: &str = "sock";
/// Maximum number of sockets of killed nodes that one start checks.
const SWEPT_MAX: usize = 1024;
/// Maximum length of a socket's path on Linux, in bytes.
const PATH_MAX: usize = 107;

/// The socket on which a node listens besides its TCP port. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct UnixDoor {
    listener: UnixListener,
    path: String,
}

impl UnixDoor {
    /// Listens on a new socket in `directory`, which is created if needed, and removes sockets
    /// there that no longer have a listener.
    ///
    /// Errors: the directory is accessible by other users (`PermissionDenied`), a path in it would
    /// be too long or is not UTF-8 (`InvalidInput`), or an error of the system.
    pub fn open(directory: &Path) -> io::Result<UnixDoor> {
        own(directory)?;
        let name = format!("{:016x}.{SUFFIX}", Entropy::system().next_u64());
        let place = directory.join(name);
        let path = match place.to_str() {
            Some(path) if path.len() <= PATH_MAX => path.to_owned(),
            _ => {
                let text = format!("{} cannot be the path of a socket", place.display());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        // A socket that is bound but not listening yet looks like that of a dead node.
        let lock = LockFile::wait(&directory.join(LOCK))?;
        sweep(directory)?;
        let listener = UnixListener::bind(&path)?;
        drop(lock);
        let door = UnixDoor { listener, path };
        // No other user can enter the directory; the mode matters if a socket is moved elsewhere.
        fs::set_permissions(&door.path, Permissions::from_mode(0o600))?;
        door.listener.set_nonblocking(true)?;
        Ok(door)
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// The next connection. It supports the same reads and writes as a TCP connection, so one type
    /// serves for both.
    pub(crate) fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(TcpStream::from(OwnedFd::from(stream)))
    }
}

impl Drop for UnixDoor {
    fn drop(&mut self) {
        remove(Path::new(&self.path));
    }
}

/// Removes a socket, and with the last one the lock of its directory. The next node that starts
/// removes files that could not be removed here.
pub fn remove(socket: &Path) {
    let Some(directory) = socket.parent() else { return };
    let lock = match directory.is_dir() {
        true => LockFile::wait(&directory.join(LOCK)),
        false => return,
    };
    let _ = fs::remove_file(socket);
    let is_socket = |path: &Path| path.extension().is_some_and(|e| e == SUFFIX);
    let others =
        fs::read_dir(directory).is_ok_and(|all| all.flatten().any(|e| is_socket(&e.path())));
    if let (Ok(lock), false) = (lock, others) {
        let _ = lock.remove();
    }
}

/// Connects to a node's socket, without blocking; the stream is non-blocking too.
///
/// Errors: the socket has no listener, its queue of connections is full (`WouldBlock`), or it
/// belongs to another user (`PermissionDenied`): a token is sent only to a node of this user, or of
/// the machine's administrator.
pub fn connect(path: &str) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let peer = socket_peercred(&socket)?.uid;
    if peer != rustix::process::geteuid() && !peer.is_root() {
        let text = format!("the listener on {path} belongs to user {}", peer.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(TcpStream::from(socket))
}

/// Creates a directory that only this user can enter, or checks an existing one.
fn own(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    let mine = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !mine || found.mode() & 0o077 != 0 {
        let text =
            format!("{} is not a directory that only this user can enter", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Removes sockets without a listener: their nodes were killed.
fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.take(SWEPT_MAX) {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != SUFFIX) {
            continue;
        }
        let Some(text) = path.to_str() else { continue };
        let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
        if connect(text).is_err_and(refused) {
            // No other user has access; a file that cannot be removed stays.
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::path::PathBuf;

    /// A directory of its own for each test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let name = format!("honeycomb-unix-{:016x}", Entropy::system().next_u64());
            Scratch(std::env::temp_dir().join(name))
        }

        fn sockets(&self) -> usize {
            let sockets = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path());
            sockets.filter(|p| p.extension().is_some_and(|e| e == SUFFIX)).count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_door_is_its_users_and_goes_with_its_node() {
        let scratch = Scratch::new();
        let door = UnixDoor::open(&scratch.0).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&scratch.0), mode(Path::new(door.path()))), (0o700, 0o600));
        let mut near = connect(door.path()).unwrap();
        near.write_all(b"bees").unwrap();
        let far = door.accept().unwrap();
        let mut heard = [0; 4];
        (&far).read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"bees");
        assert_eq!(door.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let path = door.path().to_owned();
        drop(door);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "neither socket nor lock is left");
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn sockets_of_killed_nodes_go_and_those_of_others_stay() {
        let scratch = Scratch::new();
        let living = UnixDoor::open(&scratch.0).unwrap();
        let killed = UnixDoor::open(&scratch.0).unwrap();
        // The state after a kill: closed, with the file still there.
        let UnixDoor { listener, path } = &*std::mem::ManuallyDrop::new(killed);
        rustix::net::shutdown(listener, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(connect(path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(scratch.sockets(), 2);
        let next = UnixDoor::open(&scratch.0).unwrap();
        assert_eq!(scratch.sockets(), 2);
        assert!(connect(living.path()).is_ok() && connect(next.path()).is_ok());
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let scratch = Scratch::new();
        fs::create_dir(&scratch.0).unwrap();
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)).unwrap();
        let refused = UnixDoor::open(&scratch.0).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let elsewhere = Scratch::new();
        std::os::unix::fs::symlink(&scratch.0, &elsewhere.0).unwrap();
        fs::set_permissions(&scratch.0, Permissions::from_mode(0o700)).unwrap();
        let refused = UnixDoor::open(&elsewhere.0).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_file(&elsewhere.0).unwrap();
        let long = scratch.0.join("x".repeat(100));
        assert_eq!(UnixDoor::open(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
