//! Entry into a function of any signature: a function in the platform's own calling convention that
//! loads the arguments from one array and stores the results to another.

use cranelift_codegen::data_value::DataValue;
use cranelift_codegen::ir::{
    AbiParam, Function, InstBuilder, MemFlagsData, Signature, UserFuncName, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{FuncId, Module};

/// Size of an element of the argument and result arrays, in bytes.
pub(crate) const CELL_BYTES: usize = 16;

/// The signature of every trampoline: addresses of the arguments and of the results.
pub(crate) fn trampoline_signature(call_conv: CallConv) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params = vec![AbiParam::new(types::I64); 2];
    signature
}

/// Builds the trampoline for `callee`.
pub(crate) fn build_trampoline<M: Module>(
    module: &mut M,
    callee: FuncId,
    signature: &Signature,
) -> Function {
    let call_conv = module.isa().default_call_conv();
    let mut function =
        Function::with_name_signature(UserFuncName::default(), trampoline_signature(call_conv));
    let callee = module.declare_func_in_func(callee, &mut function);
    function.dfg.ext_funcs[callee].colocated = false;
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut context);
    let block = builder.create_block();
    builder.append_block_params_for_function_params(block);
    builder.switch_to_block(block);
    builder.seal_block(block);
    let (from, to) = (
        builder.block_params(block)[0],
        builder.block_params(block)[1],
    );
    let flags = MemFlagsData::trusted();
    let arguments: Vec<Value> = signature
        .params
        .iter()
        .zip(0..)
        .map(|(param, index)| {
            let offset = index * CELL_BYTES as i32;
            builder.ins().load(param.value_type, flags, from, offset)
        })
        .collect();
    let call = builder.ins().call(callee, &arguments);
    let results = builder.inst_results(call).to_vec();
    for (result, index) in results.into_iter().zip(0..) {
        let offset = index * CELL_BYTES as i32;
        builder.ins().store(flags, result, to, offset);
    }
    builder.ins().return_(&[]);
    builder.finalize(module.target_config());
    function
}

/// The argument array for `values`.
pub(crate) fn pack(values: &[DataValue]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * CELL_BYTES];
    for (value, cell) in values.iter().zip(bytes.chunks_mut(CELL_BYTES)) {
        value.write_to_slice_le(cell);
    }
    bytes
}

/// The values in a result array.
pub(crate) fn unpack(bytes: &[u8], returns: &[AbiParam]) -> Vec<DataValue> {
    returns
        .iter()
        .zip(bytes.chunks(CELL_BYTES))
        .map(|(param, cell)| DataValue::read_from_slice_ne(cell, param.value_type))
        .collect()
}
