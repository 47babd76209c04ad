use super::*;

#[test]
fn buffers_are_zeroed_aligned_and_typed() {
    for n_bytes in [0, 4, 64, 4096, HUGE_PAGE_BYTES - 4, HUGE_PAGE_BYTES, (3 << 20) + 4] {
        let mut buf = AlignedBuf::zeroed(n_bytes);
        assert_eq!(buf.n_bytes(), n_bytes);
        assert_eq!(Some(buf.n_mapped_bytes()), AlignedBuf::mapped_bytes(n_bytes));
        assert!(buf.bytes().iter().all(|&byte| byte == 0));
        let alignment = if n_bytes < HUGE_PAGE_BYTES { ALIGNMENT } else { HUGE_PAGE_BYTES };
        assert!(n_bytes == 0 || (buf.bytes().as_ptr() as usize).is_multiple_of(alignment));
        buf.as_mut_slice_of::<f32>().fill(1.5);
        assert_eq!(buf.as_slice_of::<f32>(), vec![1.5; n_bytes / 4]);
        assert_eq!(buf.clone().bytes(), buf.bytes());
    }
}

#[test]
fn memory_that_no_machine_has_is_an_error_not_an_abort() {
    for n_bytes in [usize::MAX, usize::MAX - HUGE_PAGE_BYTES, usize::MAX / 2] {
        assert!(AlignedBuf::try_zeroed(n_bytes).is_err());
    }
}

#[test]
fn only_off_switches_huge_pages_off() {
    let cases = [(None, HugePages::On), (Some("off"), HugePages::Off), (Some(""), HugePages::On)];
    for (value, expected) in cases {
        assert_eq!(HugePages::parse(value.map(OsStr::new)), expected, "{value:?}");
    }
}

#[test]
fn a_placement_says_where_the_pages_are() {
    let reason = io::ErrorKind::PermissionDenied;
    let cases = [
        (Placement::OneNode, "1 node"),
        (Placement::Interleaved { n_nodes: 2 }, "interleaved over 2 nodes"),
        (
            Placement::Refused { n_nodes: 4, reason },
            "as first touched on 4 nodes (interleaving refused: permission denied)",
        ),
    ];
    for (placement, words) in cases {
        assert_eq!(placement.to_string(), words);
    }
}

#[test]
fn with_one_node_or_no_bytes_there_is_nothing_to_place() {
    let mut buf = AlignedBuf::zeroed(4 << 20);
    for nodes in [&[][..], &[0], &[7]] {
        assert_eq!(buf.interleave(nodes), Placement::OneNode);
    }
    assert_eq!(AlignedBuf::default().interleave(&[0, 1]), Placement::OneNode);
}

#[test]
fn nodes_that_do_not_exist_are_refused_and_the_buffer_works_on() {
    let mut buf = AlignedBuf::zeroed(4 << 20);
    for nodes in [[1022, 1023], [0, 1024], [5, usize::MAX]] {
        let placement = buf.interleave(&nodes);
        assert!(matches!(placement, Placement::Refused { n_nodes: 2, .. }), "{placement:?}");
    }
    buf.bytes_mut().fill(7);
    assert!(buf.bytes().iter().all(|&byte| byte == 7));
}

/// The system's figures of its pages.
#[cfg(target_os = "linux")]
mod kernel {
    use super::*;

    /// Which pages of the buffer exist.
    fn resident(buf: &mut AlignedBuf) -> Vec<bool> {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = buf.bytes_mut();
        let mut pages = vec![0_u8; bytes.len().div_ceil(page)];
        // SAFETY: the buffer starts on a page, and there is a byte for each of its pages.
        let result =
            unsafe { libc::mincore(bytes.as_mut_ptr().cast(), bytes.len(), pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        pages.iter().map(|page| page & 1 == 1).collect()
    }

    /// The flags of the map at the buffer's start, or `None` where the kernel does not tell.
    fn vm_flags(buf: &AlignedBuf) -> Option<String> {
        let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let at = buf.bytes().as_ptr() as usize;
        let mut is_ours = false;
        for line in text.lines() {
            let word = line.split_whitespace().next().unwrap_or("");
            if let Some((start, end)) = word.split_once('-') {
                let hex = |text| usize::from_str_radix(text, 16).expect("an address");
                is_ours = (hex(start)..hex(end)).contains(&at);
            } else if is_ours && word == "VmFlags:" {
                return Some(format!("{line} "));
            }
        }
        None
    }

    #[test]
    fn reserving_touches_no_page_and_writing_only_those_written() {
        for huge_pages in [HugePages::On, HugePages::Off] {
            let n_pages = 16 * HUGE_PAGE_BYTES;
            let mut buf = AlignedBuf::reserve(n_pages, huge_pages).expect("32 MiB");
            assert!(!resident(&mut buf).contains(&true), "{huge_pages:?}");
            buf.bytes_mut()[5 * HUGE_PAGE_BYTES] = 1;
            let pages = resident(&mut buf);
            let n = pages.len() / 16;
            assert!(pages[5 * n]);
            assert!(!pages[..5 * n].contains(&true) && !pages[6 * n..].contains(&true));
        }
    }

    #[test]
    fn large_buffers_are_advised_and_small_ones_are_not() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let cases = [
            (HUGE_PAGE_BYTES, HugePages::On, " hg "),
            ((5 << 20) + 1, HugePages::On, " hg "),
            (HUGE_PAGE_BYTES, HugePages::Off, " nh "),
        ];
        for (n_bytes, huge_pages, expected) in cases {
            let buf = AlignedBuf::reserve(n_bytes, huge_pages).expect("a few MiB");
            let Some(flags) = vm_flags(&buf) else { return };
            assert!(flags.contains(expected), "{n_bytes} bytes, {huge_pages:?}: {flags}");
        }
        let small = AlignedBuf::reserve(HUGE_PAGE_BYTES - 1, HugePages::On).expect("2 MiB");
        assert!(!vm_flags(&small).is_some_and(|flags| flags.contains(" hg ")));
    }

    /// `MPOL_F_ADDR` of the kernel's headers.
    const POLICY_OF_ADDRESS: usize = 2;

    #[test]
    fn an_interleaved_buffer_has_the_policy_it_was_given() {
        let mut buf = AlignedBuf::zeroed(4 << 20);
        match placement::bind(buf.bytes_mut(), &[0]) {
            // A container may forbid the call, and a kernel may be built without nodes.
            Err(err) => assert!(
                matches!(err.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)),
                "node 0 exists: {err}"
            ),
            Ok(()) => {
                let (mut mode, mut mask) = (0, [0_u64; 16]);
                // SAFETY: the kernel writes one number and a mask of the size told.
                let result = unsafe {
                    libc::syscall(
                        libc::SYS_get_mempolicy,
                        &raw mut mode,
                        mask.as_mut_ptr(),
                        1024_usize,
                        buf.bytes().as_ptr(),
                        POLICY_OF_ADDRESS,
                    )
                };
                assert_eq!(result, 0, "{}", io::Error::last_os_error());
                assert_eq!((mode, mask[0]), (libc::MPOL_INTERLEAVE, 1));
            }
        }
    }
}
