//! The device seam, proved by reading the sources: the kernels of the CPU are named in one folder.

use std::path::{Path, PathBuf};

/// Every Rust source in a folder and below.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Sources of the model and of the engine that may not name the kernels: all but the CPU device, the
/// error of kernels that a machine cannot run, and unit tests on that device.
fn independent() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    sources(&root.join("src"), &mut found);
    sources(&root.join("../engine/src"), &mut found);
    let exceptions = ["device/cpu", "error.rs", "load/cache/tests.rs"];
    let exceptions = exceptions.map(|path| root.join("src").join(path));
    found.retain(|path| !exceptions.iter().any(|exception| path.starts_with(exception)));
    found
}

#[test]
fn only_the_cpu_device_names_the_kernels() {
    let sources = independent();
    for part in ["decoder/mod.rs", "arch/mod.rs", "load/mod.rs", "engine/src/engine.rs"] {
        assert!(sources.iter().any(|path| path.ends_with(part)), "{part} is not read");
    }
    for path in sources {
        let text = std::fs::read_to_string(&path).expect("a source");
        assert!(!text.contains("pelton_kernels"), "{} names the kernels", path.display());
    }
}

#[test]
fn a_device_has_at_most_twenty_methods() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device");
    for (file, name) in [("mod.rs", "pub trait Device"), ("ops.rs", "pub trait Ops")] {
        let text = std::fs::read_to_string(source.join(file)).expect("a source");
        let body = text.split(name).nth(1).expect("the trait");
        let body = body.split("\n}\n").next().expect("its end");
        let n_methods = body.matches("\n    fn ").count();
        assert!((10..=20).contains(&n_methods), "{name} has {n_methods} methods");
    }
}
