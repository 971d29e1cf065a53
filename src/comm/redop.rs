//! Operators made by `ncclRedOpCreatePreMulSum`. A handle carries a salt of its communicator, so that another communicator's is noticed.

use crate::error::{Error, Result};
use crate::planner::Redop;
use crate::types::DataType;

const BUILTIN: i32 = 5;
const INDEX_BITS: u32 = 12;

/// The live operators of one communicator.
#[derive(Default)]
pub struct Redops {
    made: Vec<Option<(DataType, Redop)>>,
}

fn handle(salt: u64, index: usize) -> i32 {
    BUILTIN + (((salt as i32) & 0x3_ffff) << INDEX_BITS | index as i32)
}

impl Redops {
    pub fn create(&mut self, salt: u64, dtype: DataType, op: Redop) -> Result<i32> {
        let index = match self.made.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.made.len() < 1 << INDEX_BITS => {
                self.made.push(None);
                self.made.len() - 1
            }
            None => {
                return Err(Error::usage(format!("{} reduction operators are alive on this communicator: destroy some", self.made.len())));
            }
        };
        self.made[index] = Some((dtype, op));
        Ok(handle(salt, index))
    }

    fn index(&self, salt: u64, op: i32) -> Result<usize> {
        (0..self.made.len()).find(|&i| handle(salt, i) == op && self.made[i].is_some()).ok_or_else(|| {
            Error::argument(format!(
                "reduction operator {op:#x} is neither built in (0 to 4) nor one that this communicator has made and not destroyed"
            ))
        })
    }

    pub fn destroy(&mut self, salt: u64, op: i32) -> Result<()> {
        if (0..BUILTIN).contains(&op) {
            return Err(Error::argument("a built-in reduction operator cannot be destroyed"));
        }
        let index = self.index(salt, op)?;
        self.made[index] = None;
        Ok(())
    }

    pub fn find(&self, salt: u64, op: i32, dtype: DataType) -> Result<Redop> {
        if (0..BUILTIN).contains(&op) {
            return Ok(Redop::Builtin(op as u8));
        }
        match self.made[self.index(salt, op)?] {
            Some((made_for, found)) if made_for == dtype => Ok(found),
            Some((made_for, _)) => Err(Error::argument(format!(
                "reduction operator {op:#x} was made for {}, but the operation's elements are {}",
                made_for.name(),
                dtype.name()
            ))),
            None => Err(Error::internal("operator vanished between two looks")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_checked() {
        let mut ops = Redops::default();
        let h = ops.create(7, DataType::Float32, Redop::PreMulHost(1)).unwrap();
        assert!(h >= BUILTIN);
        assert_eq!(ops.find(7, h, DataType::Float32), Ok(Redop::PreMulHost(1)));
        assert!(ops.find(7, h, DataType::Int8).unwrap_err().message.contains("float32"));
        assert!(ops.find(8, h, DataType::Float32).is_err());
        assert_eq!(ops.find(7, 3, DataType::Int8), Ok(Redop::Builtin(3)));
        assert!(ops.destroy(7, 2).is_err());
        ops.destroy(7, h).unwrap();
        assert!(ops.destroy(7, h).is_err() && ops.find(7, h, DataType::Float32).is_err() && ops.find(7, -1, DataType::Float32).is_err());
        assert_eq!(ops.create(7, DataType::Int8, Redop::PreMulHost(2)), Ok(h));
    }
}
