//! Modules: directives, kernels and functions.
//!
//! Knows: what stands outside of bodies.
//! Must not know: statements or instructions.

use super::ast::{Func, Linkage, Module, Var, VarSpace};
use super::cursor::{Parsed, Parser};
use super::lex::{Token, lex};
use crate::error::LoadError;

/// Parses a whole module.
pub(crate) fn parse(source: &str) -> Parsed<Module<'_>> {
    let tokens = lex(source).map_err(|e| e.with_source(source))?;
    let mut parser = Parser { tokens, at: 0 };
    parser.module().map_err(|e| e.with_source(source))
}

impl<'a> Parser<'a> {
    pub(super) fn module(&mut self) -> Parsed<Module<'a>> {
        let mut module = Module::default();
        let (mut version, mut target, mut size) = (false, false, false);
        loop {
            match *self.peek() {
                Token::End => break,
                Token::Dot("version") => {
                    self.at += 1;
                    let major = self.int()?;
                    let Token::Dot(minor) = self.next() else {
                        return self.fail("`.version major.minor` expected");
                    };
                    if !(6..=9).contains(&major) || minor.parse::<u32>().is_err() {
                        self.at -= 1;
                        return self.fail("PTX version outside 6.0 to 9.x");
                    }
                    version = true;
                }
                Token::Dot("target") => {
                    self.at += 1;
                    self.target()?;
                    target = true;
                }
                Token::Dot("address_size") => {
                    self.at += 1;
                    if self.int()? != 64 {
                        self.at -= 1;
                        return self.fail("only 64-bit addresses are supported");
                    }
                    size = true;
                }
                _ if !(version && target) => {
                    return self.fail("`.version` and `.target` must come first");
                }
                Token::Dot("file") => self.file()?,
                Token::Dot("pragma") => self.pragma()?,
                Token::Phase(_) => return self.fail("phase marker outside a function"),
                _ => self.declaration(&mut module)?,
            }
        }
        if !(version && target && size) {
            return Err(LoadError::new(
                0,
                "`.version`, `.target` or `.address_size 64` is missing",
            ));
        }
        Ok(module)
    }

    pub(super) fn target(&mut self) -> Parsed<()> {
        loop {
            let name = self.word()?;
            let known = name.strip_prefix("sm_").is_some_and(|rest| {
                rest.trim_end_matches(['a', 'f'])
                    .parse::<u32>()
                    .is_ok_and(|sm| sm >= 50)
            });
            if !known && !matches!(name, "texmode_unified" | "texmode_independent" | "debug") {
                self.at -= 1;
                return self.fail("unknown target");
            }
            if !self.accept(',') {
                return Ok(());
            }
        }
    }

    /// `.file index "name" [, timestamp, size]`
    pub(super) fn file(&mut self) -> Parsed<()> {
        self.at += 1;
        self.int()?;
        if self.next() != Token::Text {
            self.at -= 1;
            return self.fail("file name expected");
        }
        while self.accept(',') {
            self.int()?;
        }
        Ok(())
    }

    /// `.loc file line column [, function_name label, inlined_at file line column]`
    pub(super) fn loc(&mut self) -> Parsed<()> {
        self.at += 1;
        for _ in 0..3 {
            self.int()?;
        }
        while self.accept(',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.accept('+') {
                        self.int()?;
                    }
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.int()?;
                    }
                }
                _ => {
                    self.at -= 1;
                    return self.fail("unknown attribute of `.loc`");
                }
            }
        }
        Ok(())
    }

    /// Pragmas are hints to ptxas (PTX ISA, ".pragma"): none changes what a program means.
    pub(super) fn pragma(&mut self) -> Parsed<()> {
        self.at += 1;
        loop {
            if self.next() != Token::Text {
                self.at -= 1;
                return self.fail("string expected");
            }
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    pub(super) fn declaration(&mut self, module: &mut Module<'a>) -> Parsed<()> {
        let mut linkage = Linkage::Here;
        loop {
            match *self.peek() {
                Token::Dot("visible" | "weak" | "common") => self.at += 1,
                Token::Dot("extern") => {
                    linkage = Linkage::Extern;
                    self.at += 1;
                }
                Token::Dot("entry") => {
                    self.at += 1;
                    let func = self.func(true)?;
                    module.funcs.push(func);
                    return Ok(());
                }
                Token::Dot("func") => {
                    self.at += 1;
                    let func = self.func(false)?;
                    module.funcs.push(func);
                    return Ok(());
                }
                Token::Dot(name @ ("global" | "const" | "shared")) => {
                    self.at += 1;
                    let space = match name {
                        "global" => VarSpace::Global,
                        "const" => VarSpace::Const,
                        _ => VarSpace::Shared,
                    };
                    self.vars(space, linkage, |var| module.vars.push(var))?;
                    return Ok(());
                }
                Token::Dot("section") => {
                    return self.fail(
                        "debug sections are not supported: build the PTX without debug info",
                    );
                }
                Token::Dot(name) => return self.fail(format!("unknown directive `.{name}`")),
                _ => return self.fail(format!("directive expected, found {}", self.found())),
            }
        }
    }

    pub(super) fn func(&mut self, is_kernel: bool) -> Parsed<Func<'a>> {
        let line = self.line();
        let mut returns = Vec::new();
        if *self.peek() == Token::Dot("attribute") {
            return self.fail("unknown directive `.attribute`");
        }
        if !is_kernel && *self.peek() == Token::Mark('(') {
            returns = self.params()?;
        }
        let name = self.word()?;
        let params = if *self.peek() == Token::Mark('(') {
            self.params()?
        } else {
            Vec::new()
        };
        let (mut max_threads, mut required_shape) = (None, None);
        loop {
            match *self.peek() {
                Token::Dot("maxntid") => {
                    self.at += 1;
                    let shape = self.shape()?;
                    max_threads = Some(shape.iter().map(|n| u64::from(*n)).product());
                }
                Token::Dot("reqntid") => {
                    self.at += 1;
                    required_shape = Some(self.shape()?);
                }
                // Hints to ptxas on register allocation.
                Token::Dot("minnctapersm" | "maxnctapersm" | "maxnreg") => {
                    self.at += 1;
                    self.int()?;
                }
                Token::Dot("noreturn") => self.at += 1,
                Token::Dot("pragma") => self.pragma()?,
                _ => break,
            }
        }
        let body = if self.accept(';') {
            None
        } else {
            Some(self.body()?)
        };
        Ok(Func {
            line,
            is_kernel,
            name,
            returns,
            params,
            max_threads,
            required_shape,
            body,
        })
    }

    pub(super) fn shape(&mut self) -> Parsed<[u32; 3]> {
        let mut shape = [self.small()?, 1, 1];
        for n in shape.iter_mut().skip(1) {
            if self.accept(',') {
                *n = self.small()?;
            }
        }
        Ok(shape)
    }

    pub(super) fn params(&mut self) -> Parsed<Vec<Var<'a>>> {
        self.expect('(')?;
        let mut params = Vec::new();
        if self.accept(')') {
            return Ok(params);
        }
        loop {
            match self.next() {
                Token::Dot("param") => {}
                Token::Dot("reg") => {
                    self.at -= 1;
                    return self.fail("parameters in registers are not supported");
                }
                _ => {
                    self.at -= 1;
                    return self.fail("`.param` expected");
                }
            }
            let (mut align, ty) = self.align_and_type()?;
            if *self.peek() == Token::Dot("ptr") {
                self.at += 1;
                // The alignment and space after `.ptr` describe what the parameter points to: a hint to ptxas.
                loop {
                    match *self.peek() {
                        Token::Dot("global" | "const" | "shared" | "local") => self.at += 1,
                        Token::Dot("align") => {
                            self.at += 1;
                            self.alignment()?;
                        }
                        _ => break,
                    }
                }
            }
            align = align.max(u32::from(ty.bytes()));
            let param = self.var(VarSpace::Param, Linkage::Here, align, ty)?;
            if param.bytes.is_none() {
                return Err(LoadError::new(param.line, "parameter of unspecified size"));
            }
            params.push(param);
            if self.accept(')') {
                return Ok(params);
            }
            self.expect(',')?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

    fn error(body: &str) -> LoadError {
        parse(&format!("{HEAD}{body}")).unwrap_err()
    }

    #[test]
    fn declarations_keep_size_alignment_and_values() {
        let source = format!(
            "{HEAD}.visible .global .align 4 .u32 x = 5;\n.const .align 8 .b8 t[] = {{1, 0xff, 3}};\n\
             .global .u64 p[2] = {{x, generic(x)+4}};\n.global .b16 m[2][3] = {{{{1, 2}}, {{3}}}};\n\
             .extern .shared .align 16 .b8 smem[];\n"
        );
        let module = parse(&source).unwrap();
        let sizes: Vec<_> = module
            .vars
            .iter()
            .map(|v| (v.name, v.bytes, v.align))
            .collect();
        assert_eq!(
            sizes,
            [
                ("x", Some(4), 4),
                ("t", Some(3), 8),
                ("p", Some(16), 8),
                ("m", Some(12), 2),
                ("smem", None, 16)
            ]
        );
        let indices: Vec<_> = module.vars[3].init.iter().map(|(at, _)| *at).collect();
        assert_eq!(indices, [0, 1, 3]);
    }

    #[test]
    fn errors_name_line_and_text() {
        for (body, line, part) in [
            (".global .u32 x = 0x1ffffffff;", 4, "does not fit"),
            (".global .u32 x[1] = {1, 2};", 4, "more initial values"),
            ("\n.wibble", 5, "unknown directive `.wibble`"),
            (".entry k() {\n add.u32 a, b\n}", 6, "`;` expected"),
            (".entry k() {\n @ add.u32;\n", 5, "name expected"),
            (".entry k() {\n add.u32 a;\n", 6, "the body has no end"),
            (".entry k() { .maxnreg 3; }", 4, "unknown directive"),
            (".section .debug_str { }", 4, "debug sections"),
            (".global .f16 x;", 4, "unsupported type"),
            (".global .align 3 .b8 x;", 4, "power of two"),
            ("// wv.phase post\n", 4, "outside a function"),
            (".entry k(.reg .u32 x) {}", 4, "registers are not supported"),
        ] {
            let e = error(body);
            assert_eq!(e.line, line, "{body}: {e}");
            assert!(e.message.contains(part), "{body}: {e}");
        }
        let e = error("\n  .wibble 3");
        assert_eq!(
            e.to_string(),
            "PTX line 5: unknown directive `.wibble`: `.wibble 3`"
        );
        assert_eq!(parse(".version 8.2\n.target sm_70\n").unwrap_err().line, 0);
        assert!(parse(".version 8.2\n.target sm_70\n.address_size 32").is_err());
        assert!(parse(".version 3.0\n").is_err());
        assert!(parse(".entry k() {}").is_err());
    }
}
