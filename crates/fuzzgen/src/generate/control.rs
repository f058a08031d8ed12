//! Statements, and those that branch.

use cranelift_codegen::ir::{BlockCall, InstBuilder, JumpTableData, TrapCode, Type, types};

use super::function::Gen;
use super::place::Space;

/// Scopes within scopes, at most.
const DEPTH_MAX: usize = 4;

type Statement = fn(&mut Gen<'_, '_, '_>);

/// Statements that do not branch for long and can stand anywhere.
const SMALL: [(usize, Statement); 16] = [
    (20, |g| g.load()),
    (20, |g| g.store()),
    (6, |g| g.store_back()),
    (5, |g| g.double_store()),
    (6, |g| g.overwrite()),
    (3, |g| g.copy_pieces()),
    (4, |g| g.far_access()),
    (2, |g| g.atomic()),
    (1, |g| g.fence()),
    (4, |g| g.trap()),
    (3, |g| g.division()),
    (4, |g| g.store_pointer()),
    (3, |g| g.memory_function()),
    (4, |g| g.host_call()),
    (2, |g| g.throw()),
    (2, |g| g.collect()),
];

/// All others.
const LARGE: [(usize, Statement); 16] = [
    (12, |g| g.derive_place()),
    (10, |g| g.if_else()),
    (3, |g| g.switch()),
    (8, |g| g.counted_loop()),
    (4, |g| g.irreducible_loop()),
    (2, |g| g.endless_loop()),
    (2, |g| g.early_return()),
    (3, |g| g.guarded_access()),
    (8, |g| g.call()),
    (4, |g| g.try_call()),
    (6, |g| g.tail_call()),
    (2, |g| g.recursion()),
    (6, |g| g.set_variable()),
    (8, |g| g.slot_in_scope()),
    (1, |g| g.debugtrap()),
    (1, |g| g.sequence_point()),
];

impl Gen<'_, '_, '_> {
    /// A statement out of [`SMALL`], nested ones included while the budget lasts.
    pub(crate) fn small_statement(&mut self) {
        if self.budget > 0 {
            self.budget -= 1;
            let statement = self.c.weighted(&SMALL);
            statement(self);
        }
    }

    fn statement(&mut self) {
        if self.depth < DEPTH_MAX && self.c.percent(35) {
            self.budget -= 1;
            let statement = self.c.weighted(&LARGE);
            return statement(self);
        }
        self.small_statement();
    }

    /// Statements until the budget is spent.
    pub(crate) fn statements(&mut self) {
        while self.budget > 0 {
            self.statement();
        }
    }

    /// A few statements in a scope of their own.
    pub(crate) fn body(&mut self) {
        let scope = self.open();
        for _ in 0..1 + self.c.below(5) {
            if self.budget > 0 {
                self.statement();
            }
        }
        self.close(&scope);
    }

    /// Statements that have a slot to themselves: others may be in the same bytes.
    fn slot_in_scope(&mut self) {
        if !self.has_scoped_slots {
            return;
        }
        self.shape.scoped_slots += 1;
        let scope = self.open();
        let number = self.c.below(2);
        self.new_slot(number);
        self.body();
        self.close(&scope);
    }

    /// Changes a variable, which later gives a block parameter.
    fn set_variable(&mut self) {
        if self.c.percent(40) {
            let place = self.pointee();
            let address = self.address_in(place, 16);
            self.b.def_var(self.cursor, address);
            return;
        }
        let at = self.c.below(self.variables.len());
        let ty: Type = [types::I64, types::I32, types::F64, types::I8X16][at];
        let old = self.b.use_var(self.variables[at]);
        self.values.push(old);
        let value = self.value(ty);
        self.b.def_var(self.variables[at], value);
    }

    fn if_else(&mut self) {
        let condition = self.condition();
        self.shape.ifs += 1;
        let (then, other, join) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let has_else = self.c.percent(60);
        let target = if has_else { other } else { join };
        self.b.ins().brif(condition, then, &[], target, &[]);
        self.b.switch_to_block(then);
        self.body();
        self.b.ins().jump(join, &[]);
        self.b.switch_to_block(other);
        if has_else {
            self.body();
        }
        // Without an else this block is unreachable.
        self.b.ins().jump(join, &[]);
        self.b.switch_to_block(join);
    }

    fn switch(&mut self) {
        let index = self.index(3);
        let index = self.b.ins().ireduce(types::I32, index);
        let arms: Vec<_> = (0..1 + self.c.below(3))
            .map(|_| self.b.create_block())
            .collect();
        let join = self.b.create_block();
        self.shape.switches += 1;
        let pool = &mut self.b.func.dfg.value_lists;
        let calls: Vec<BlockCall> = (0..3)
            .map(|arm| BlockCall::new(arms[arm % arms.len()], std::iter::empty(), pool))
            .collect();
        let default = BlockCall::new(join, std::iter::empty(), pool);
        let table = self
            .b
            .create_jump_table(JumpTableData::new(default, &calls));
        self.b.ins().br_table(index, table);
        for arm in arms {
            self.b.switch_to_block(arm);
            self.body();
            self.b.ins().jump(join, &[]);
        }
        self.b.switch_to_block(join);
    }

    /// A loop that counts down; perhaps an address moves on in it.
    fn counted_loop(&mut self) {
        if self.loop_depth >= 2 {
            return;
        }
        self.shape.loops += 1;
        let counter = self.b.declare_var(types::I32);
        let trips = self.c.between(1, 4);
        let start = self.b.ins().iconst(types::I32, trips);
        self.b.def_var(counter, start);
        let place = self.place(40, true);
        let mover = self.c.percent(40).then(|| self.b.declare_var(types::I64));
        if let Some(mover) = mover {
            let address = self.moved(place.base, place.low);
            self.b.def_var(mover, address);
        }
        let (header, exit) = (self.b.create_block(), self.b.create_block());
        self.b.ins().jump(header, &[]);
        self.b.switch_to_block(header);
        let scope = self.open();
        self.loop_depth += 1;
        if let Some(mover) = mover {
            self.shape.loop_addresses += 1;
            let base = self.b.use_var(mover);
            let moving = super::place::Place {
                base,
                low: 0,
                high: 8,
                align: 1,
                ..place
            };
            self.places.push(moving);
            self.store_somewhere_in(moving);
            self.body();
            let next = self.b.ins().iadd_imm_s(base, 8);
            self.b.def_var(mover, next);
        } else {
            self.body();
        }
        self.count_down(counter, header, exit);
        self.loop_depth -= 1;
        self.close(&scope);
        self.b.switch_to_block(exit);
    }

    /// Ends the block: to `again` as long as the counter lasts, else to `exit`.
    fn count_down(
        &mut self,
        counter: cranelift_frontend::Variable,
        again: cranelift_codegen::ir::Block,
        exit: cranelift_codegen::ir::Block,
    ) {
        let left = self.b.use_var(counter);
        let left = self.b.ins().iadd_imm_s(left, -1);
        self.b.def_var(counter, left);
        self.b.ins().brif(left, again, &[], exit, &[]);
    }

    /// Two blocks, each of which goes to the other, entered at either.
    fn irreducible_loop(&mut self) {
        if self.loop_depth >= 1 {
            return;
        }
        self.shape.irreducible += 1;
        let counter = self.b.declare_var(types::I32);
        let start = self.b.ins().iconst(types::I32, 5);
        self.b.def_var(counter, start);
        let condition = self.condition();
        let (left, right, exit) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        self.b.ins().brif(condition, left, &[], right, &[]);
        self.loop_depth += 1;
        for (block, other) in [(left, right), (right, left)] {
            self.b.switch_to_block(block);
            self.body();
            self.count_down(counter, other, exit);
        }
        self.loop_depth -= 1;
        self.b.switch_to_block(exit);
    }

    /// A loop without an exit. No run gets there.
    fn endless_loop(&mut self) {
        self.shape.endless += 1;
        let never = self.b.ins().band_imm_u(self.params.g, 0x4000);
        let (endless, rest) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(never, endless, &[], rest, &[]);
        self.b.switch_to_block(endless);
        let scope = self.open();
        self.store();
        self.close(&scope);
        self.b.ins().jump(endless, &[]);
        self.b.switch_to_block(rest);
    }

    fn early_return(&mut self) {
        self.shape.early_returns += 1;
        let condition = self.rare_condition();
        let rest = self.b.create_block();
        let exit = self.exit;
        self.b.ins().brif(condition, exit, &[], rest, &[]);
        self.b.switch_to_block(rest);
    }

    fn trap(&mut self) {
        self.shape.traps += 1;
        let code = TrapCode::unwrap_user(1 + self.c.below(4) as u8);
        let condition = self.rare_condition();
        match self.c.below(5) {
            0 | 1 => {
                self.b.ins().trapnz(condition, code);
            }
            2 | 3 => {
                let rest = self.b.ins().bxor_imm_u(condition, 1);
                self.b.ins().trapz(rest, code);
            }
            _ => {
                let (trap, rest) = (self.b.create_block(), self.b.create_block());
                self.b.ins().brif(condition, trap, &[], rest, &[]);
                self.b.switch_to_block(trap);
                let scope = self.open();
                self.store();
                self.close(&scope);
                self.b.ins().trap(code);
                self.b.switch_to_block(rest);
            }
        }
    }

    fn division(&mut self) {
        self.shape.divisions += 1;
        let (dividend, divisor) = (self.value(types::I32), self.value(types::I32));
        // Seldom 0.
        let divisor = match self.c.percent(20) {
            true => self.b.ins().band_imm_u(divisor, 7),
            false => self.b.ins().bor_imm_u(divisor, 2),
        };
        let result = match self.c.below(3) {
            0 => self.b.ins().udiv(dividend, divisor),
            1 => self.b.ins().sdiv(dividend, divisor),
            _ => self.b.ins().urem(dividend, divisor),
        };
        self.mix(result);
    }

    fn fence(&mut self) {
        self.shape.fences += 1;
        self.b.ins().fence();
    }

    fn debugtrap(&mut self) {
        self.shape.debugtraps += 1;
        let condition = self.rare_condition();
        let (stop, rest) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(condition, stop, &[], rest, &[]);
        self.b.switch_to_block(stop);
        self.b.ins().debugtrap();
        self.b.ins().jump(rest, &[]);
        self.b.switch_to_block(rest);
    }

    fn sequence_point(&mut self) {
        self.shape.sequence_points += 1;
        self.b.ins().sequence_point();
    }
}

impl Space {
    /// Whether an address of this space may be passed for a parameter of region `region`.
    pub(crate) fn fits(self, region: u32) -> bool {
        match self {
            Space::Slot(_, None) => true,
            other => other.region() == Some(region),
        }
    }
}
