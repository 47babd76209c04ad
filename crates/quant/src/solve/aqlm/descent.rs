//! The two steps that lower the loss in turns: codebooks for given codes, and codes for given codebooks.

use super::books::Books;
use super::search::{Codes, Search};
use super::{DIM, N_ENTRIES, ROWS, Solver};
use crate::solve::threads::for_chunks;
use crate::solve::{Hessian, Result, SolveError};

/// Steps of conjugate gradients.
const STEPS: usize = 12;

/// A row between two choices of its codes.
struct Row<'a> {
    /// `w - ŵ`, and its product with the Hessian.
    errors: Vec<f32>,
    product: Vec<f32>,
    codes: &'a mut [u8],
    loss: f64,
}

impl Solver {
    fn damped(&self) -> &Hessian {
        self.hessian.as_ref().expect("invariant: set before codes are improved")
    }

    /// Lowers the loss by other codebooks: conjugate gradients (Hestenes and Stiefel, 1952), divided by
    /// what each entry's codes weigh.
    pub(super) fn solve_books(&self, books: &mut Books, codes: &[u8]) {
        let n_books = books.n();
        let mut residual = self.gathered(books, codes, |row, books, out| {
            let codes = self.codes_of(codes, row, n_books);
            books.values(codes, out);
            out.iter_mut().zip(&self.values[row * self.k..]).for_each(|(x, w)| *x = w - *x);
        });
        let weights = self.entry_weights(codes, n_books);
        let divided = |residual: &[f64]| -> Vec<f64> {
            residual.iter().zip(&weights).map(|(x, w)| if *w > 0.0 { x / w } else { 0.0 }).collect()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut step = divided(&residual);
        let mut size = dot(&residual, &step);
        for _ in 0..STEPS {
            let direction = Books { entries: step.iter().map(|x| *x as f32).collect() };
            let product = self.gathered(&direction, codes, |row, books, out| {
                books.values(self.codes_of(codes, row, n_books), out);
            });
            let curvature = dot(&step, &product);
            if size <= 0.0 || curvature <= 0.0 {
                break;
            }
            let length = size / curvature;
            books.entries.iter_mut().zip(&step).for_each(|(x, s)| *x += (length * s) as f32);
            residual.iter_mut().zip(&product).for_each(|(r, p)| *r -= length * p);
            let divided = divided(&residual);
            let next = dot(&residual, &divided);
            step.iter_mut().zip(&divided).for_each(|(s, d)| *s = d + next / size * *s);
            size = next;
        }
    }

    fn codes_of<'a>(&self, codes: &'a [u8], row: usize, n_books: usize) -> &'a [u8] {
        let len = self.k / DIM * n_books;
        &codes[row * len..][..len]
    }

    /// The sum over all vectors of `scale² x H` for the entries that their codes name; `fill` writes the
    /// rows of `x`.
    fn gathered(
        &self,
        books: &Books,
        codes: &[u8],
        fill: impl Fn(usize, &Books, &mut [f32]) + Sync,
    ) -> Vec<f64> {
        let (k, n_books) = (self.k, books.n());
        let mut products = vec![0.0_f32; self.values.len()];
        let chunks = for_chunks(&mut products, ROWS * k, self.n_threads, |chunk, rows| {
            for (i, row) in rows.chunks_exact_mut(k).enumerate() {
                fill(chunk * ROWS + i, books, row);
            }
            let product = self.damped().product(rows);
            rows.copy_from_slice(&product);
            Ok::<(), SolveError>(())
        });
        chunks.expect("invariant: nothing here fails");
        let mut sums = vec![0.0_f64; books.entries.len()];
        for (row, (product, scale)) in products.chunks_exact(k).zip(&self.scales).enumerate() {
            let weight = f64::from(scale * scale);
            let codes = self.codes_of(codes, row, n_books).chunks_exact(n_books);
            for (product, codes) in product.chunks_exact(DIM).zip(codes) {
                for (m, code) in codes.iter().enumerate() {
                    let sums = &mut sums[(m * N_ENTRIES + usize::from(*code)) * DIM..][..DIM];
                    sums.iter_mut()
                        .zip(product)
                        .for_each(|(sum, x)| *sum += weight * f64::from(*x));
                }
            }
        }
        sums
    }

    /// For each number of each entry, `scale² H[j][j]` of the inputs where its code stands.
    fn entry_weights(&self, codes: &[u8], n_books: usize) -> Vec<f64> {
        let hessian = self.damped();
        let diagonal: Vec<f64> = (0..self.k).map(|j| f64::from(hessian.at(j, j))).collect();
        let mut weights = vec![0.0_f64; n_books * N_ENTRIES * DIM];
        for (row, scale) in self.scales.iter().enumerate() {
            let weight = f64::from(scale * scale);
            let codes = self.codes_of(codes, row, n_books).chunks_exact(n_books);
            for (diagonal, codes) in diagonal.chunks_exact(DIM).zip(codes) {
                for (m, code) in codes.iter().enumerate() {
                    let own = &mut weights[(m * N_ENTRIES + usize::from(*code)) * DIM..][..DIM];
                    own.iter_mut().zip(diagonal).for_each(|(own, x)| *own += weight * x);
                }
            }
        }
        weights
    }

    /// Chooses the codes of each vector anew, all others as they are, and returns the loss.
    pub(super) fn solve_codes(&self, books: &Books, codes: &mut [u8]) -> Result<f64> {
        let (k, n_books, hessian) = (self.k, books.n(), self.damped());
        let values = self.values.chunks_exact(k);
        let mut rows: Vec<Row<'_>> = codes
            .chunks_exact_mut(k / DIM * n_books)
            .zip(values)
            .map(|(codes, values)| {
                let mut errors = vec![0.0; k];
                books.values(codes, &mut errors);
                errors.iter_mut().zip(values).for_each(|(x, w)| *x = w - *x);
                Row { errors, product: Vec::new(), codes, loss: 0.0 }
            })
            .collect();
        let blocks: Vec<Block> = (0..k).step_by(DIM).map(|c| Block::new(hessian, c)).collect();
        for_chunks(&mut rows, ROWS, self.n_threads, |_, rows| {
            let errors: Vec<f32> = rows.iter().flat_map(|row| row.errors.iter().copied()).collect();
            let products = hessian.product(&errors);
            for (row, product) in rows.iter_mut().zip(products.chunks_exact(k)) {
                row.product = product.to_vec();
            }
            for (i, block) in blocks.iter().enumerate() {
                let search = Search::behind(books, &block.factor);
                rows.iter_mut().for_each(|row| row.choose(i, block, &search, books, hessian));
            }
            for row in rows {
                let products = row.errors.iter().zip(&row.product);
                row.loss = products.map(|(e, p)| f64::from(*e) * f64::from(*p)).sum();
            }
            Ok(())
        })?;
        let losses = rows.iter().zip(&self.scales);
        Ok(losses.map(|(row, scale)| row.loss * f64::from(scale * scale)).sum())
    }
}

impl Row<'_> {
    /// Chooses the codes of vector `i`.
    fn choose(
        &mut self,
        i: usize,
        block: &Block,
        search: &Search,
        books: &Books,
        hessian: &Hessian,
    ) {
        let (c, n_books) = (i * DIM, books.n());
        let errors: [f32; DIM] = std::array::from_fn(|j| self.errors[c + j]);
        let known = Codes::of(&self.codes[i * n_books..][..n_books]);
        let mut old = [0.0; DIM];
        books.values(known.as_slice(), &mut old);
        // Without this vector's own errors, the product is what the others pull at it.
        let shift = block.solved(&std::array::from_fn(|j| self.product[c + j]));
        let target = std::array::from_fn(|j| old[j] + shift[j]);
        let found = search.better(&search.turned(&target), known);
        let mut new = [0.0; DIM];
        books.values(found.as_slice(), &mut new);
        for j in 0..DIM {
            let change = old[j] - new[j];
            if change != 0.0 {
                self.errors[c + j] = errors[j] + change;
                let row = hessian.row(c + j);
                self.product.iter_mut().zip(row).for_each(|(product, h)| *product += change * h);
            }
        }
        self.codes[i * n_books..][..n_books].copy_from_slice(found.as_slice());
    }
}

/// The Hessian of the inputs of one vector: `L Lᵀ`.
struct Block {
    /// `L`.
    factor: [[f32; DIM]; DIM],
}

impl Block {
    /// The damped Hessian's block from input `c` on. A block without a factor, which damping leaves to
    /// inputs beyond f32, is taken as its diagonal.
    fn new(hessian: &Hessian, c: usize) -> Self {
        let at = |i: usize, j: usize| f64::from(hessian.at(c + i, c + j));
        let mut lower = [[0.0_f64; DIM]; DIM];
        let mut is_sound = true;
        for i in 0..DIM {
            for j in 0..=i {
                let before: f64 = (0..j).map(|l| lower[i][l] * lower[j][l]).sum();
                let left = at(i, j) - before;
                lower[i][j] = if i == j { left.sqrt() } else { left / lower[j][j] };
                is_sound &= lower[i][j].is_finite() && (i != j || lower[i][j] > 0.0);
            }
        }
        if !is_sound {
            lower = std::array::from_fn(|i| {
                std::array::from_fn(|j| if i == j { at(i, i).max(1e-30).sqrt() } else { 0.0 })
            });
        }
        Self { factor: lower.map(|row| row.map(|x| x as f32)) }
    }

    /// `g (L Lᵀ)⁻¹`.
    fn solved(&self, g: &[f32; DIM]) -> [f32; DIM] {
        let lower = &self.factor;
        let mut x = *g;
        for i in 0..DIM {
            let before: f32 = (0..i).map(|j| lower[i][j] * x[j]).sum();
            x[i] = (x[i] - before) / lower[i][i];
        }
        for i in (0..DIM).rev() {
            let behind: f32 = (i + 1..DIM).map(|j| lower[j][i] * x[j]).sum();
            x[i] = (x[i] - behind) / lower[i][i];
        }
        x
    }
}
