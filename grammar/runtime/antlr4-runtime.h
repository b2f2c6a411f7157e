// Replaces the ANTLR runtime's umbrella header: includes what generated lexers and parsers and compiler/parse need,
// but not the interpreter's data reader, which clang refuses (a const member without initialiser).
#pragma once

#include "antlr4-common.h"

#include "ANTLRInputStream.h"
#include "BailErrorStrategy.h"
#include "CommonToken.h"
#include "CommonTokenStream.h"
#include "DefaultErrorStrategy.h"
#include "FailedPredicateException.h"
#include "InputMismatchException.h"
#include "Lexer.h"
#include "ListTokenSource.h"
#include "NoViableAltException.h"
#include "Parser.h"
#include "ParserRuleContext.h"
#include "RuleContext.h"
#include "Vocabulary.h"
#include "atn/ATN.h"
#include "atn/ATNDeserializer.h"
#include "atn/LexerATNSimulator.h"
#include "atn/ParserATNSimulator.h"
#include "dfa/DFA.h"
#include "support/CPPUtils.h"
#include "tree/ErrorNode.h"
#include "tree/ParseTree.h"
#include "tree/TerminalNode.h"
