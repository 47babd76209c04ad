//! The CPUs that a thread may run on, and pinning a thread to one of them.

/// CPUs in the affinity mask of the calling thread, ascending; empty when the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero `cpu_set_t` is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer and the size describe `set`.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: `id` is below CPU_SETSIZE, the number of bits of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&id| unsafe { libc::CPU_ISSET(id, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// Pins the calling thread to CPU `id`; without effect where the system refuses.
#[cfg(target_os = "linux")]
pub(super) fn pin_to(id: usize) {
    // SAFETY: an all-zero `cpu_set_t` is a valid empty set, and `id` came from a set of this type.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(id, &mut set);
        set
    };
    // SAFETY: the pointer and the size describe `set`; a refusal leaves the thread floating.
    let _ = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin_to(_id: usize) {}
