//! Rows shared among threads.

use std::sync::Mutex;

/// Calls `solve` with the number of each chunk of `rows_per_chunk` rows and the chunk; chunks are
/// taken by `n_threads` threads as they come. The first error in the order of the rows is returned.
pub(super) fn for_chunks<T: Send, E: Send>(
    rows: &mut [T],
    rows_per_chunk: usize,
    n_threads: usize,
    solve: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let chunks = Mutex::new(rows.chunks_mut(rows_per_chunk.max(1)).enumerate());
    let first_error: Mutex<Option<(usize, E)>> = Mutex::new(None);
    let work = || {
        loop {
            let next = lock(&chunks).next();
            let Some((idx, chunk)) = next else { return };
            if let Err(error) = solve(idx, chunk) {
                let mut first = lock(&first_error);
                if first.as_ref().is_none_or(|(known, _)| idx < *known) {
                    *first = Some((idx, error));
                }
            }
        }
    };
    on_threads(n_threads, &work);
    let first = first_error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// Runs `work` on `n_threads` threads. It is not generic, because the compiler would make the threads
/// anew for each closure.
fn on_threads(n_threads: usize, work: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            scope.spawn(work);
        }
        work();
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_solved_once_and_the_first_error_wins() {
        let mut rows = vec![0_usize; 103];
        let solved = for_chunks(&mut rows, 10, 4, |idx, chunk| {
            chunk.iter_mut().for_each(|row| *row += idx + 1);
            Ok::<_, usize>(())
        });
        assert_eq!(solved, Ok(()));
        assert!(rows.iter().enumerate().all(|(i, row)| *row == i / 10 + 1));
        let failed = for_chunks(&mut rows, 10, 4, |idx, _| if idx > 3 { Err(idx) } else { Ok(()) });
        assert_eq!(failed, Err(4));
    }
}
