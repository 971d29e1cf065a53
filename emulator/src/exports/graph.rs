//! Graphs, their executable form, and the objects of the program's that they keep alive.

use crate::graph::{Graph, Retained, UserObject};
use crate::launch::{HostFunction, Work};
use crate::result::{Code, Result, call, put};
use crate::state::state;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphCreate(graph: *mut usize, _flags: u32) -> i32 {
    call(|| {
        let mut state = state();
        let handle = state.new_handle();
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(graph, handle)? };
        state.graphs.insert(handle, Graph::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: usize) -> i32 {
    call(|| state().graphs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_VALUE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphClone(clone: *mut usize, original: usize) -> i32 {
    call(|| {
        let mut state = state();
        let graph = state.graphs.get(&original).ok_or(Code::INVALID_VALUE)?.clone();
        let copy = graph.renumbered(|| state.new_handle());
        let handle = state.new_handle();
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(clone, handle)? };
        state.graphs.insert(handle, copy);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> i32 {
    call(|| {
        let state = state();
        let graph = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
        if count.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if !nodes.is_null() {
            // SAFETY: the caller says how many there is room for; the rest is set to NULL.
            unsafe {
                for i in 0..count.read() {
                    nodes.add(i).write(graph.nodes.get(i).map_or(0, |node| node.handle));
                }
            }
        }
        // SAFETY: not NULL, and the caller's to write. With room, the number of nodes written.
        unsafe { count.write(if nodes.is_null() { graph.nodes.len() } else { graph.nodes.len().min(count.read()) }) };
        Ok(())
    })
}

/// `CUgraphNodeType`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphNodeGetType(node: usize, kind: *mut u32) -> i32 {
    call(|| {
        let state = state();
        let node = state.graphs.values().find_map(|graph| graph.node(node)).ok_or(Code::INVALID_VALUE)?;
        let number = match node.work {
            Work::Kernel(_) => 0,
            Work::Copy { .. } | Work::Write { .. } => 1,
            Work::Set { .. } => 2,
            Work::Host { .. } => 3,
            Work::Graph(_) => 4,
            Work::Nothing => 5,
            Work::WaitFor(_) => 6,
            Work::Record(_) => 7,
            Work::StoreWord { .. } | Work::AwaitWord { .. } => 12,
        };
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(kind, number) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: u64) -> i32 {
    call(|| {
        let mut state = state();
        let plan = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.instantiate();
        let handle = state.new_handle();
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(executable, handle)? };
        state.plans.insert(handle, Arc::new(plan));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate_v2(
    executable: *mut usize,
    graph: usize,
    _node: *mut usize,
    _log: *mut c_char,
    _room: usize,
) -> i32 {
    // SAFETY: the caller's contract is the same; there is nothing to log.
    unsafe { cuGraphInstantiateWithFlags(executable, graph, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiate(
    executable: *mut usize,
    graph: usize,
    _node: *mut usize,
    _log: *mut c_char,
    _room: usize,
) -> i32 {
    // SAFETY: the caller's contract is the same; there is nothing to log.
    unsafe { cuGraphInstantiateWithFlags(executable, graph, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> i32 {
    call(|| {
        let mut state = state();
        let plan = state.plans.get(&executable).ok_or(Code::INVALID_VALUE)?.clone();
        let key = state.stream_key(stream)?;
        if state.capture_of(key)?.is_some() {
            return state.capture_node(key, Work::Graph(plan));
        }
        // Launches of the same graph follow each other, whatever their streams.
        let done = state.enqueue(key, vec![plan.last()], Work::Graph(plan.clone()))?;
        plan.set_last(done);
        Ok(())
    })
}

/// Launches under way keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(executable: usize) -> i32 {
    call(|| state().plans.remove(&executable).map(|_| ()).ok_or(Code::INVALID_VALUE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuUserObjectCreate(
    object: *mut usize,
    data: *mut c_void,
    destroy: Option<HostFunction>,
    count: u32,
    flags: u32,
) -> i32 {
    call(|| {
        let destroy = destroy.ok_or(Code::INVALID_VALUE)?;
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC must be given.
        if count == 0 || flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state();
        let handle = state.new_handle();
        // SAFETY: the output is as cuda.h asks.
        unsafe { put(object, handle)? };
        state.objects.insert(handle, Arc::new(UserObject::new(data, destroy, count)));
        Ok(())
    })
}

fn object(handle: usize) -> Result<Arc<UserObject>> {
    state().objects.get(&handle).cloned().ok_or(Code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuUserObjectRetain(handle: usize, count: u32) -> i32 {
    call(|| {
        object(handle)?.retain(count);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuUserObjectRelease(handle: usize, count: u32) -> i32 {
    call(|| {
        if object(handle)?.release(count) {
            state().objects.remove(&handle);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphRetainUserObject(graph: usize, handle: usize, count: u32, flags: u32) -> i32 {
    call(|| {
        let object = object(handle)?;
        let mut state = state();
        let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        // CU_GRAPH_USER_OBJECT_MOVE hands over references that the caller has.
        if flags & 1 == 0 {
            object.retain(count);
        }
        graph.retained.push(Retained::adopt(handle, object, count));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphReleaseUserObject(graph: usize, handle: usize, count: u32) -> i32 {
    call(|| {
        let mut state = state();
        let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        for _ in 0..count {
            let retained = graph.retained.iter_mut().find(|retained| retained.is_of(handle)).ok_or(Code::INVALID_VALUE)?;
            if retained.release_one() {
                graph.retained.retain(|retained| !retained.is_empty());
            }
        }
        Ok(())
    })
}
