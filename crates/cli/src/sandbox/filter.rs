//! The system calls that the sandbox refuses.

use std::collections::BTreeMap;

use super::Openings;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Calls that are refused whatever their arguments.
const REFUSED: &[libc::c_long] = &[
    // Programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Connections to elsewhere.
    libc::SYS_connect,
    // Files: all ways to change them, but for `openat`. The arguments of `openat2` and of io_uring
    // lie in memory, where a filter cannot see them.
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_truncate,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_removexattr,
    // Other processes and the kernel.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_setuid,
    libc::SYS_setgid,
];

/// Older forms of the same calls.
#[cfg(target_arch = "x86_64")]
const REFUSED_OLD: &[libc::c_long] = &[
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OLD: &[libc::c_long] = &[];

/// Calls that open a file, and the place of their flags among their arguments.
#[cfg(target_arch = "x86_64")]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_openat, 2)];

/// Calls that a server needs which keeps files of clients.
#[cfg(target_arch = "x86_64")]
const KEEPING: &[libc::c_long] = &[
    libc::SYS_unlinkat,
    libc::SYS_unlink,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rename,
];
#[cfg(not(target_arch = "x86_64"))]
const KEEPING: &[libc::c_long] = &[libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2];

/// Calls that a server needs which removes the file of its socket.
#[cfg(target_arch = "x86_64")]
const REMOVING: &[libc::c_long] = &[libc::SYS_unlinkat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const REMOVING: &[libc::c_long] = &[libc::SYS_unlinkat];

/// The filter, compiled for this processor.
///
/// # Errors
///
/// When the processor is none for which there are filters.
pub(super) fn program(openings: Openings) -> Result<BpfProgram, String> {
    compile(openings).map_err(|error| error.to_string())
}

fn compile(openings: Openings) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let is_open = |call: &&libc::c_long| {
        openings.connections && **call == libc::SYS_connect
            || openings.files && KEEPING.contains(call)
            || openings.removal && REMOVING.contains(call)
    };
    for &call in REFUSED.iter().chain(REFUSED_OLD).filter(|call| !is_open(call)) {
        rules.insert(call, Vec::new());
    }
    let opening = if openings.files { &[] } else { OPENING };
    for &(call, place) in opening {
        let writes = [
            (libc::O_ACCMODE, libc::O_WRONLY),
            (libc::O_ACCMODE, libc::O_RDWR),
            (libc::O_CREAT, libc::O_CREAT),
            (libc::O_TRUNC, libc::O_TRUNC),
        ];
        let rule = |(mask, value): (libc::c_int, libc::c_int)| {
            let op = SeccompCmpOp::MaskedEq(mask as u64);
            let condition =
                SeccompCondition::new(place, SeccompCmpArgLen::Dword, op, value as u64)?;
            SeccompRule::new(vec![condition])
        };
        rules.insert(call, writes.into_iter().map(rule).collect::<Result<_, _>>()?);
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use super::*;

    fn is_refused<T>(outcome: std::io::Result<T>) -> bool {
        outcome.err().is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    #[test]
    fn an_opening_for_connections_opens_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let new = folder.path().join("new");
        let program =
            program(Openings { connections: true, ..Openings::default() }).expect("a filter");
        let inside = std::thread::spawn(move || {
            seccompiler::apply_filter(&program).expect("the kernel takes it");
            let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
            TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
            assert!(is_refused(File::create(&new)));
            assert!(is_refused(Command::new("/bin/true").status()));
        });
        inside.join().expect("all of it");
    }

    #[test]
    fn a_server_that_keeps_files_writes_them_and_starts_no_programs() {
        let folder = tempfile::tempdir().expect("a folder");
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        let program = program(Openings { files: true, ..Openings::default() })
            .expect("a filter for this processor");
        let inside = std::thread::spawn(move || {
            seccompiler::apply_filter(&program).expect("the kernel takes it");
            std::fs::write(&old, "text").expect("written");
            std::fs::rename(&old, &new).expect("renamed");
            std::fs::remove_file(&new).expect("removed");
            assert!(is_refused(std::fs::create_dir(&new)));
            assert!(is_refused(Command::new("/bin/true").status()));
            assert!(is_refused(TcpStream::connect(("127.0.0.1", 9))));
        });
        inside.join().expect("all of it");
    }

    #[test]
    fn a_server_with_a_unix_socket_removes_files_and_makes_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, new) = (folder.path().join("socket"), folder.path().join("new"));
        std::fs::write(&socket, "").expect("written");
        let program = program(Openings { removal: true, ..Openings::default() })
            .expect("a filter for this processor");
        let inside = std::thread::spawn(move || {
            seccompiler::apply_filter(&program).expect("the kernel takes it");
            assert!(is_refused(std::fs::rename(&socket, &new)));
            std::fs::remove_file(&socket).expect("removed");
            assert!(is_refused(File::create(&new)));
            assert!(is_refused(Command::new("/bin/true").status()));
            assert!(is_refused(TcpStream::connect(("127.0.0.1", 9))));
        });
        inside.join().expect("all of it");
    }

    #[test]
    fn a_thread_in_the_sandbox_serves_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = folder.path().join("old");
        std::fs::write(&old, "text").expect("written");
        let program = program(Openings::default()).expect("a filter for this processor");
        // The filter binds this thread alone, and the threads that it starts.
        let inside = std::thread::spawn(move || {
            seccompiler::apply_filter(&program).expect("the kernel takes it");
            let mut text = String::new();
            File::open(&old).expect("reading").read_to_string(&mut text).expect("reading");
            assert_eq!(text, "text");
            let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
            let address = listener.local_addr().expect("an address");
            std::thread::spawn(|| vec![1_u8; 1 << 20]).join().expect("threads and memory");

            let new = old.with_file_name("new");
            assert!(is_refused(File::create(&new)));
            assert!(is_refused(OpenOptions::new().write(true).open(&old)));
            assert!(is_refused(OpenOptions::new().append(true).open(&old)));
            assert!(is_refused(std::fs::rename(&old, &new)));
            assert!(is_refused(std::fs::remove_file(&old)));
            assert!(is_refused(std::fs::create_dir(&new)));
            assert!(is_refused(std::os::unix::fs::symlink(&old, &new)));
            assert!(is_refused(Command::new("/bin/true").status()));
            assert!(is_refused(TcpStream::connect(address)));
        });
        inside.join().expect("all of it");
        let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(left.len(), 1);
    }
}
