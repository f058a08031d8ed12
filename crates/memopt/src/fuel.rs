//! A bound on the number of rewrites, for finding the first one at fault by bisection.

/// What is left of [`Options::fuel`](crate::Options::fuel).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuel {
    left: Option<u64>,
}

impl Fuel {
    pub(crate) fn new(limit: Option<u64>) -> Fuel {
        Fuel { left: limit }
    }

    /// Takes the fuel for one rewrite; false if there is none.
    pub(crate) fn take(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}
