//! With the feature `mpi`, compiles the shim between Rust and MPI by the system's `mpicc`, and links what that links.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "mpi")]
    mpi();
}

#[cfg(feature = "mpi")]
fn mpi() {
    const SHIM: &str = "src/transport/mpi/shim.c";
    println!("cargo::rerun-if-changed={SHIM}");
    println!("cargo::rerun-if-env-changed=MPICC");
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    // Open MPI, MPICH and what descends from them say so what they would call.
    let shown = std::process::Command::new(&mpicc).arg("-show").output();
    let shown = match shown {
        Ok(shown) if shown.status.success() => String::from_utf8_lossy(&shown.stdout).into_owned(),
        _ => {
            println!(
                "cargo::error=the feature mpi needs MPI's compiler, and '{mpicc} -show' does not work: install one \
                 (libopenmpi-dev, libmpich-dev), or name it by MPICC"
            );
            return;
        }
    };
    cc::Build::new().compiler(&mpicc).file(SHIM).warnings(true).compile("ringstep_mpi");
    for word in shown.split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
}
