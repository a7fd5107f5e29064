//! The process: its user, its limits, its CPU time, the machine's names, and random numbers.

use std::{
    ffi::{CString, c_char},
    fmt, fs,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    mem::MaybeUninit,
    process::Command,
    ptr,
    time::Duration,
};

use super::check;

/// Returns the effective user id of this process.
pub fn user_id() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() }
}

/// Makes the process run as a user and its primary group, whose ids [`find_user`] returns. If the
/// process runs as root, first drops all supplementary groups. A process without privileges can
/// change only to the user and group that it already has. The error names the call that failed.
pub fn become_user((uid, gid): (libc::uid_t, libc::gid_t)) -> io::Result<()> {
    let named = |call| move |error| io::Error::other(format!("{call}: {error}"));
    if user_id() == 0 {
        // SAFETY: the list has no groups, so the pointer is not read.
        let result = unsafe { libc::setgroups(0, ptr::null()) };
        check(result).map_err(named("setgroups"))?;
    }
    // SAFETY: takes no pointers.
    let result = unsafe { libc::setgid(gid) };
    check(result).map_err(named("setgid"))?;
    // SAFETY: takes no pointers.
    let result = unsafe { libc::setuid(uid) };
    check(result).map_err(named("setuid"))?;
    Ok(())
}

/// Looks up a user and its primary group. `None` if the user database has no such user.
pub fn find_user(name: &str) -> io::Result<Option<(libc::uid_t, libc::gid_t)>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut strings = vec![0 as c_char; 64 * 1024];
    let mut found = ptr::null_mut();
    // SAFETY: every pointer is valid for the length given or implied.
    let code = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    // SAFETY: `found` is null for an unknown user; if not null, it points at the filled `entry`.
    Ok(unsafe { found.as_ref() }.map(|entry| (entry.pw_uid, entry.pw_gid)))
}

/// Makes the kernel kill the command's process once the thread that starts the process has ended
/// for any reason. Does not affect processes that the command starts, nor a command that gains
/// privileges. Does nothing outside Linux.
pub fn kill_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt as _;
        let parent = std::process::id();
        let prepare = move || {
            // SAFETY: takes two numbers.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
            // SAFETY: the call takes no arguments and cannot fail.
            let is_orphan = u32::try_from(unsafe { libc::getppid() }) != Ok(parent);
            // If the parent ended before the call of prctl, the kernel will not kill this process.
            if is_orphan { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
        };
        // SAFETY: between fork and exec, `prepare` makes two system calls and allocates nothing.
        unsafe { command.pre_exec(prepare) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// The most descriptors that macOS grants to a process, even if the hard limit of the process is
/// higher or unlimited.
const OPEN_MAX: libc::rlim_t = 10_240;

/// Raises the soft limit on open descriptors to the hard limit, or as far as the system allows.
/// Returns the new limit, whose type differs between systems.
pub fn raise_descriptor_limit() -> io::Result<impl fmt::Display> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for one rlimit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    check(result)?;
    let libc::rlimit { rlim_cur: before, rlim_max: hard } = limit;
    set_descriptor_limit(hard, hard).or_else(|error| {
        let most = hard.min(OPEN_MAX);
        if most > before { set_descriptor_limit(most, hard) } else { Err(error) }
    })
}

/// Sets the limits on open descriptors, and returns the soft limit.
fn set_descriptor_limit(soft: libc::rlim_t, hard: libc::rlim_t) -> io::Result<libc::rlim_t> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is valid for one rlimit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    check(result).map(|_| soft)
}

/// Asks the kernel for the machine's name, the kernel's version and the processor's kind.
pub fn uname() -> io::Result<[String; 3]> {
    let mut names = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: the pointer is valid for one utsname.
    let result = unsafe { libc::uname(names.as_mut_ptr()) };
    check(result)?;
    // SAFETY: the call succeeded, so it has filled the utsname.
    let names = unsafe { names.assume_init() };
    Ok([&names.nodename[..], &names.version[..], &names.machine[..]].map(text))
}

/// The id that the kernel has chosen for this boot of the machine. `None` if the system has no such
/// id, as outside Linux.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().into())
}

/// The text in a C array that `uname` has filled, up to the first NUL.
fn text(array: &[c_char]) -> String {
    let bytes = array.iter().map(|c| c.to_le_bytes()[0]).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// Returns the CPU times that this process has used in user mode and in the kernel.
pub fn cpu_time() -> (Duration, Duration) {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for one rusage.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if result == -1 {
        return Default::default();
    }
    // SAFETY: the call succeeded, so it has filled the rusage.
    let usage = unsafe { usage.assume_init() };
    let duration = |time: libc::timeval| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    (duration(usage.ru_utime), duration(usage.ru_stime))
}

/// Returns a random number, which distinguishes this run from all other runs. The number comes from
/// the standard library's hasher, whose keys come from the system.
pub fn random_number() -> u64 {
    RandomState::new().build_hasher().finish()
}
