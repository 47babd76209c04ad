//! `eprint!` and `eprintln!` of this crate: a message that cannot be shown, because standard error is
//! full or has no reader, is lost, where those of the standard library end the process.

macro_rules! eprint {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr().lock(), format_args!($($arg)*));
    }};
}

macro_rules! eprintln {
    () => {
        eprint!("\n")
    };
    ($($arg:tt)*) => {
        eprint!("{}\n", format_args!($($arg)*))
    };
}
