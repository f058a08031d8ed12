//! The programs of `samples/`, each with the output that it should have.

pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) output: &'static str,
}

macro_rules! samples {
    ($($name:literal)*) => {
        &[$(Sample {
            name: $name,
            text: include_str!(concat!("../samples/", $name, ".tin")),
            output: include_str!(concat!("../samples/", $name, ".out")),
        }),*]
    };
}

pub(crate) const SAMPLES: &[Sample] = samples! {
    "binary_search" "collatz" "fibonacci" "gcd" "life" "linked_list" "mandelbrot" "matrix" "nbody"
    "newton" "points" "polynomial" "quicksort" "sieve" "state_machine"
};
